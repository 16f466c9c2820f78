"""Leases in etcd, beside a store that keeps the journals."""
