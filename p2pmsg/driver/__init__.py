"""Drivers: what gives peers their turns, and waits for them. See docs/design/driver.md."""
