"""The shapes of printed documents, as pydantic records."""
