"""The compute engines."""

from speedo.engines import schema

schema.decide()
