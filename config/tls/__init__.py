"""Certificates and keys as the settings name them, made into contexts of TLS.

The daemons ask for contexts; the checks of health ask until when a certificate holds.
"""
