"""The market feed demo, which `p2pmsg demo` starts; a wheel has it as `p2pmsg.demo`."""
