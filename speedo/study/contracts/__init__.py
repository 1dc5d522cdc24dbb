"""The contract tests of strategies and rules; `speedo.testing` is their public name."""
