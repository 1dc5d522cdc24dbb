"""Files at URIs (S3, SFTP, Google Cloud Storage, HDFS, HTTP) through fsspec: fetched before a run, copied during it."""
