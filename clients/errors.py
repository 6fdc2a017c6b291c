"""The one kind of error that every command tells in a single line, with exit status 1."""


class UserError(Exception):
    """Something the user can act on; the message says what and, where there is one, what to do."""
