"""Reading exact ranges and heads of streams: the engines. See README.md."""
