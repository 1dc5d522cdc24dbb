"""The stores of files as fixtures."""

from tests.support.stores import http, s3, s3_server, sftp, sftp_server

__all__ = ["http", "s3", "s3_server", "sftp", "sftp_server"]
