"""For all tests: Ctrl-C means what it says, however the tests were started."""

import signal

# A shell that starts something in the background has it ignore Ctrl-C, and its children too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
