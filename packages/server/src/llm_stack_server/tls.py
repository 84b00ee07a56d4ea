"""TLS: the server's certificate, and optionally the authority that clients' certificates must come from."""

from __future__ import annotations

import ssl
from typing import NoReturn

from llm_stack_server.errors import StartupError


class Tls:
    """A context for the server's connections whose certificate can be read again."""

    def __init__(self, cert: str, key: str | None, client_ca: str | None) -> None:
        """Read the files.

        Args:
            cert: PEM file with the certificate and its chain.
            key: PEM file with the private key; None where ``cert`` holds it.
            client_ca: PEM file with authorities; with it, clients need a certificate from one of them.

        Raises:
            StartupError: a file cannot be read, the key is encrypted, or it does not fit the certificate.
        """
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self.context = self._read()

    def reload(self) -> None:
        """Read certificate and key again, for new connections. The authorities stay as they were read.

        Raises:
            StartupError: a file is wrong; all stays as it was.
        """
        self._read()  # the live context must never hold half of a pair
        self._load_pair(self.context)

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self._load_pair(context)
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except (OSError, ssl.SSLError) as error:
                raise StartupError(f"tls_client_ca: {self._client_ca}: {error}") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _load_pair(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._cert, self._key, password=_refuse_password)
        except (OSError, ssl.SSLError) as error:
            names = self._cert if self._key is None else f"{self._cert} with {self._key}"
            raise StartupError(f"tls_cert: {names}: {error}") from None


def _refuse_password() -> NoReturn:
    raise StartupError("tls_key: the private key is encrypted; give one without a passphrase")
