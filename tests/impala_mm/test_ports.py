"""Addresses as users write them."""

import pytest

from impala_mm import ports


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":80", "a:b", "a:0", "a:65536"])
def test_an_address_without_host_or_port_is_refused(address):
    with pytest.raises(ValueError, match="is no host:port"):
        ports.split_address(address)
