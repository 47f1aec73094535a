"""The command line: the parser, one function a command, what the terminal shows."""
