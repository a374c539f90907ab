"""Clients of object stores, one module for each library; `addresses.STORES` says which schemes are whose."""
