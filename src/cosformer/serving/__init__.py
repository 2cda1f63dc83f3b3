"""Saved models behind transformers' own HTTP server (extra `serve`); `cosformer serve` starts it.

`shared.py` lets requests share the steps of one batch, `manager.py` connects it to the classes of
transformers' server, `requests.py` refuses fields that the server does not check, and `server.py` builds the
application.
"""
