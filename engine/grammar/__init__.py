"""What a reply must be, held to it token by token."""
