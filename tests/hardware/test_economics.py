"""The price table against the node presets, and the power of nodes."""

import pytest

from shardwright.errors import InvalidValueError, UnknownNameError
from shardwright.hardware.catalog import device_ids, load_cluster, load_node, node_ids
from shardwright.hardware.economics import ON_DEMAND, needed_price, offer_of, offers, priced, rated_power_w

PRICED = [name for name in node_ids() if load_node(name).usd_per_gpu_hour is not None]


def test_every_offer_says_where_and_when():
    assert len(offers()) >= 10
    for offer in offers():
        assert 0 < offer.low <= offer.high
        assert offer.source
        assert offer.date
        assert offer.nodes or offer.devices
        assert set(offer.nodes) <= set(node_ids())
        assert set(offer.devices) <= set(device_ids())


@pytest.mark.parametrize("name", PRICED)
def test_the_price_in_force_lies_within_the_offer(name):
    offer = offer_of(name, ON_DEMAND)
    assert offer.low <= load_node(name).usd_per_gpu_hour <= offer.high
    assert offer.source in load_node(name).price_source
    assert offer.date in load_node(name).price_source


def test_every_node_of_an_on_demand_offer_has_a_price():
    assert {n for offer in offers() if offer.term == ON_DEMAND for n in offer.nodes} == set(PRICED)


def test_reserved_is_cheaper_than_on_demand():
    assert offer_of("p5.48xlarge", "reserved-1-year").high < offer_of("p5.48xlarge", ON_DEMAND).low
    with pytest.raises(UnknownNameError, match="reserved-1-year"):
        offer_of("dgx-h100", "reserved-1-year")


def test_rated_power():
    assert rated_power_w(load_node("dgx-h100")) == 10_200  # as the vendor rates it
    assert rated_power_w(load_node("p5.48xlarge")) == pytest.approx(8 * 700 * 1.8)  # by its GPUs
    assert rated_power_w(load_node("nd128isr-gb200-v6")) == pytest.approx(4 * 1200 * 1.4)


def test_overheads_are_those_of_rated_nodes():
    for name, low, high in (("dgx-h100", 1.8, 1.85), ("dgx-b200", 1.75, 1.8), ("dgx-a100-80g", 2.0, 2.05)):
        node = load_node(name)
        assert low <= node.power_w / (node.gpus * node.device.tdp_w) <= high


def test_prices_are_replaced_where_stated():
    cluster = load_cluster("dgx-h100:2")
    assert priced(cluster, {"dgx-h100": (9.0, "given")}).node.usd_per_gpu_hour == 9.0
    assert priced(cluster, {"dgx-a100-80g": (9.0, "given")}) == cluster


def test_a_missing_price_says_how_to_give_it():
    with pytest.raises(InvalidValueError) as caught:
        needed_price(load_node("dgx-b200"))
    assert "--price dgx-b200=" in caught.value.hint
