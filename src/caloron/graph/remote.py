"""Calls stages on other machines over HTTP."""

from __future__ import annotations

from caloron.graph.errors import ParseError, RemoteCallFailed
from caloron.graph.jsontext import Json, decode

_SECONDS = 30.0
_MOST_BYTES = 64 * 1024 * 1024


class HttpCaller:
    """POSTs `{"input": …}` and reads `data.output`; the HTTP status does not count."""

    def call(self, url: str, text: str, seconds: float | None) -> Json:
        if not url.startswith(("http://", "https://")):
            raise RemoteCallFailed("only http and https can be called", url=url)
        answer = self._post(url, text, min(seconds or _SECONDS, _SECONDS))
        if not isinstance(answer, dict):
            raise RemoteCallFailed("the answer is no JSON object", url=url)
        if answer.get("ok") is False:
            said = answer.get("error")
            raise RemoteCallFailed(said if isinstance(said, str) else "unknown error", url=url)
        data = answer.get("data")
        if not isinstance(data, dict) or "output" not in data:
            raise RemoteCallFailed("the answer holds no `data.output`", url=url)
        return data["output"]

    def _post(self, url: str, text: str, seconds: float) -> Json:
        # Most graphs call nobody, and the import takes longer than they do.
        import urllib.error
        import urllib.request

        request = urllib.request.Request(
            url,
            data=f'{{"input":{text}}}'.encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        status = 200
        try:
            try:
                answer = urllib.request.urlopen(request, timeout=seconds)
            except urllib.error.HTTPError as error:
                answer, status = error, error.code
            with answer:
                body = answer.read(_MOST_BYTES + 1)
            if len(body) > _MOST_BYTES:
                raise RemoteCallFailed(f"the answer is over {_MOST_BYTES} bytes", url=url)
            return decode(body, wide_integers=True, what="the answer")
        except ParseError as error:
            said = error.reason if status < 300 else f"HTTP {status}, and {error.reason}"
            raise RemoteCallFailed(said, url=url) from error
        except (OSError, ValueError) as error:
            raise RemoteCallFailed(str(error), url=url) from error
