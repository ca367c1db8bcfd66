"""What the log of a p2pmsg.aio.Publisher does in the executor, so that the loop goes on."""
