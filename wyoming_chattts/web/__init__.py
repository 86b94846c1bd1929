"""The voice studio page, its interface, `/metrics` and `/health`, by aiohttp on a port of its own.

`app` puts it together and serves it, `access` says who may come in, `api` is what the page calls,
`static/` is the page. Nothing on it comes from elsewhere.
"""
