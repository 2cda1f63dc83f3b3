"""Saved models behind transformers' own HTTP server (extra `serve`); `cosformer serve` starts it.

`shared.py` lets requests share the steps of one batch, `manager.py` hands them to it in the words of
transformers' server, `requests.py` refuses what that server would stumble over, and `server.py` puts them
together.
"""
