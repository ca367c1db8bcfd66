"""The market feed demo: `p2pmsg demo`."""
