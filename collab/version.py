"""The version of this package, for those who compare it with others'."""

VERSION = "0.1.0"
