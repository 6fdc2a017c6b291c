"""OpenAI's Responses: conversations that the server may keep."""
