"""Peers: sockets, engine and verbs of each, and its faces. See docs/design/driver.md."""
