"""Reading exact ranges and heads of streams, without subscribing."""
