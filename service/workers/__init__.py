"""The processes that read model files, without credentials and with bounded memory."""
