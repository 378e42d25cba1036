"""The parameters that asynchronous clients pull and push, kept in one place that several servers share."""
