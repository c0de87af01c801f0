"""Settings of the embedded cluster: sources, free defaults, refusals that say what to do."""

import ipaddress
from pathlib import Path

import pytest

from tools.cluster.errors import SettingsError
from tools.cluster.settings import PORTS, Options, Settings, choose_api_port, choose_cidr, resolve


def settings_for(tmp_path: Path, options: Options, last: Settings | None = None, **host: object) -> Settings:
    taken = [ipaddress.IPv4Network(str(cidr)) for cidr in host.get("taken", ())]  # type: ignore[attr-defined]
    return resolve(
        tmp_path,
        options,
        last,
        node_address=lambda wanted, remembered: wanted or remembered or "192.0.2.7",
        routes=lambda: list(taken),
        port_is_free=lambda port: port not in host.get("busy", ()),  # type: ignore[operator]
    )


def test_defaults_on_a_quiet_host(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, Options())
    assert (settings.api_port, settings.cluster_cidr, settings.service_cidr) == (
        16443,
        "10.244.0.0/24",
        "10.96.0.0/16",
    )
    assert settings.lws
    assert settings.service_address(1) == "10.96.0.1"
    assert settings.dns_address == "10.96.0.10"


def test_a_default_range_that_the_host_routes_is_passed_over(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, Options(), taken=("10.244.0.0/16", "10.96.0.0/12"))
    assert settings.cluster_cidr == "10.245.0.0/24"
    assert not ipaddress.IPv4Network(settings.service_cidr).overlaps(ipaddress.IPv4Network("10.96.0.0/12"))


def test_ranges_of_pods_and_services_never_overlap(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="service CIDR"):
        settings_for(tmp_path, Options(cluster_cidr="10.50.0.0/24", service_cidr="10.50.0.0/16"))


@pytest.mark.parametrize(
    ("cidr", "told"),
    [
        ("10.1.0.0/24", r"overlaps the route 10\.0\.0\.0/8"),
        ("172.20.0.1/24", "host bits"),
        ("172.20.0.0/30", "prefix length"),
        ("fd00::/64", "cluster CIDR fd00"),
    ],
)
def test_a_wanted_range_that_cannot_be_used_is_refused(cidr: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        choose_cidr("cluster CIDR", cidr, (), [ipaddress.IPv4Network("10.0.0.0/8")], 28)


def test_the_port_block_moves_when_one_of_its_ports_is_busy() -> None:
    busy = {16443 + PORTS.index("kubelet")}
    assert choose_api_port(None, lambda port: port not in busy) == 16453


def test_a_wanted_port_that_is_busy_is_refused_with_the_flag_to_change() -> None:
    with pytest.raises(SettingsError, match="--api-port"):
        choose_api_port(20000, lambda port: port != 20001)
    with pytest.raises(SettingsError, match="1024"):
        choose_api_port(80, lambda _: True)


def test_a_saved_cluster_keeps_its_ranges_although_it_now_routes_them_itself(tmp_path: Path) -> None:
    first = settings_for(tmp_path, Options(lws=False))
    first.places.state.mkdir(parents=True)
    first.save()
    last = Settings.load(tmp_path)
    assert last == first
    again = settings_for(tmp_path, Options(), last, taken=("10.244.0.0/24",), busy=range(16443, 16500))
    assert again == first


def test_a_changed_address_of_the_host_is_taken_over(tmp_path: Path) -> None:
    first = settings_for(tmp_path, Options())
    assert settings_for(tmp_path, Options(node_ip="192.0.2.9"), first).node_ip == "192.0.2.9"


def test_changing_a_range_of_an_existing_cluster_says_to_take_it_down(tmp_path: Path) -> None:
    first = settings_for(tmp_path, Options())
    with pytest.raises(SettingsError, match="run `down` first"):
        settings_for(tmp_path, Options(cluster_cidr="10.99.0.0/24"), first)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"api_port": 1}'])
def test_a_damaged_settings_file_counts_as_no_cluster(tmp_path: Path, text: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "settings.json").write_text(text)
    assert Settings.load(tmp_path) is None


def test_flags_win_over_the_environment() -> None:
    environment = Options.from_environment(
        {"STRUCTUREDLLM_CLUSTER_API_PORT": "17000", "STRUCTUREDLLM_CLUSTER_LWS": "0"}
    )
    assert environment == Options(api_port=17000, lws=False)
    assert Options(api_port=18000).over(environment) == Options(api_port=18000, lws=False)
    assert Options(lws=True).over(environment).lws is True


@pytest.mark.parametrize("name", ["API_PORT", "LWS"])
def test_an_unreadable_variable_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match=f"STRUCTUREDLLM_CLUSTER_{name}=yes"):
        Options.from_environment({f"STRUCTUREDLLM_CLUSTER_{name}": "yes"})


def test_a_bad_node_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="lower case"):
        settings_for(tmp_path, Options(node_name="My_Node"))


def test_socket_paths_stay_short_and_differ_between_caches(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 200)
    one, two = settings_for(deep, Options()).places, settings_for(tmp_path, Options()).places
    assert len(f"{one.socket}.ttrpc") < 107
    assert one.run != two.run
