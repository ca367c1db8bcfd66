"""What a multicast over UDP does differently: datagrams, back-off, repairs to all, flow."""
