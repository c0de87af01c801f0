"""The cluster's settings: places, names, address ranges and ports, from flags, environment and the last `up`.

Owns their defaults and checks. Imports errors, host and components.
"""

import hashlib
import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.cluster.components import ControlPlane
from tools.cluster.errors import SettingsError
from tools.cluster.host import Network, overlapping

ENVIRONMENT_PREFIX = "STRUCTUREDLLM_CLUSTER_"
DEFAULT_API_PORT = 16443
# Ports are taken as one block that starts at the API port.
PORTS = (
    "api",
    "etcd",
    "etcd-peer",
    "controller-manager",
    "scheduler",
    "kubelet",
    "kubelet-healthz",
    "proxy-healthz",
    "proxy-metrics",
)
PORT_BLOCKS = 20
# From different private blocks: a VPN often routes all of 10.0.0.0/8.
DEFAULT_CLUSTER_CIDRS = ("10.244.0.0/24", "10.245.0.0/24", "172.29.244.0/24", "192.168.244.0/24")
DEFAULT_SERVICE_CIDRS = ("10.96.0.0/16", "10.144.0.0/16", "172.30.0.0/16", "192.168.192.0/20")
DEFAULT_NODE_NAME = "structuredllm"
NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Options:
    """What the user asked for; None means: as the last `up`, otherwise a default that is free."""

    api_port: int | None = None
    cluster_cidr: str | None = None
    service_cidr: str | None = None
    node_name: str | None = None
    node_ip: str | None = None
    lws: bool | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Options":
        """Read `STRUCTUREDLLM_CLUSTER_*`.

        Raises:
            SettingsError: A value cannot be read.
        """

        def get(name: str) -> str | None:
            return environ.get(ENVIRONMENT_PREFIX + name) or None

        port, lws = get("API_PORT"), get("LWS")
        if port is not None and not port.isdigit():
            raise SettingsError(f"{ENVIRONMENT_PREFIX}API_PORT={port}: not a port number")
        if lws is not None and lws not in ("0", "1"):
            raise SettingsError(f"{ENVIRONMENT_PREFIX}LWS={lws}: use 0 or 1")
        return cls(
            api_port=None if port is None else int(port),
            cluster_cidr=get("CLUSTER_CIDR"),
            service_cidr=get("SERVICE_CIDR"),
            node_name=get("NODE_NAME"),
            node_ip=get("NODE_IP"),
            lws=None if lws is None else lws == "1",
        )

    def over(self, other: "Options") -> "Options":
        """Return these options, with gaps filled from `other`."""
        mine = {name: value for name, value in asdict(self).items() if value is not None}
        return Options(**{**asdict(other), **mine})


@dataclass(frozen=True)
class Settings:
    """The settings of one cluster; `home` is its folder in the cache."""

    home: Path
    api_port: int
    cluster_cidr: str
    service_cidr: str
    node_name: str
    node_ip: str
    lws: bool

    @property
    def places(self) -> "Places":
        """The cluster's folders."""
        return Places(self.home)

    def port(self, name: str) -> int:
        """Return the port of one of `PORTS`."""
        return self.api_port + PORTS.index(name)

    def service_address(self, index: int) -> str:
        """Return an address of the service range: 1 is the API server, 10 is DNS."""
        return str(ipaddress.IPv4Network(self.service_cidr)[index])

    @property
    def dns_address(self) -> str:
        """Service address of CoreDNS."""
        return self.service_address(10)

    @property
    def plane(self) -> ControlPlane:
        """The control plane's places and ports."""
        return ControlPlane(
            state=self.places.state,
            bind_address="0.0.0.0",
            advertise_address=self.node_ip,
            api_port=self.api_port,
            etcd_port=self.port("etcd"),
            etcd_peer_port=self.port("etcd-peer"),
            controller_manager_port=self.port("controller-manager"),
            scheduler_port=self.port("scheduler"),
            service_cidr=self.service_cidr,
            cluster_cidr=self.cluster_cidr,
        )

    def save(self) -> None:
        """Write the settings for the next command."""
        values = {name: value for name, value in asdict(self).items() if name != "home"}
        self.places.settings_file.write_text(json.dumps(values, indent=1))

    @classmethod
    def load(cls, home: Path) -> "Settings | None":
        """Return the settings of the last `up`, or None when there is no cluster (or its file is damaged)."""
        try:
            return cls(home=home, **json.loads(Places(home).settings_file.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None


@dataclass(frozen=True)
class Places:
    """Folders of the cluster of one cache.

    `state` goes with `down`; `containerd_root` (the images) and `logs` stay.
    """

    home: Path

    @property
    def state(self) -> Path:
        """Everything that makes up the present cluster."""
        return self.home / "state"

    @property
    def run(self) -> Path:
        """Sockets and containerd's running state: short, since socket paths are limited to 107 bytes."""
        return Path("/run") / f"structuredllm-{hashlib.sha256(str(self.home).encode()).hexdigest()[:8]}"

    @property
    def logs(self) -> Path:
        """Logs of all components and pods."""
        return self.home / "logs"

    @property
    def containerd_root(self) -> Path:
        """The image store and snapshots of containerd."""
        return self.home / "containerd"

    @property
    def socket(self) -> Path:
        """The socket of containerd."""
        return self.run / "containerd.sock"

    @property
    def settings_file(self) -> Path:
        """The settings of the last `up`."""
        return self.state / "settings.json"

    @property
    def footprint_file(self) -> Path:
        """What the host looked like before the first `up`."""
        return self.state / "footprint.json"

    @property
    def kubeconfig(self) -> Path:
        """The user's kubeconfig."""
        return self.home / "kubeconfig"

    def pidfile(self, component: str) -> Path:
        """Pid file of a component."""
        return self.state / "run" / f"{component}.pid"

    def log(self, component: str) -> Path:
        """Log of a component."""
        return self.logs / f"{component}.log"


def choose_cidr(
    what: str, wanted: str | None, defaults: Iterable[str], taken: Iterable[Network], largest_prefix: int
) -> str:
    """Return an address range that this host does not route yet.

    Raises:
        SettingsError: The wanted one (or every default) is taken, or is no private IPv4 range of fit size.
    """
    used = list(taken)
    for cidr in defaults if wanted is None else (wanted,):
        try:
            network = ipaddress.IPv4Network(cidr)
        except ValueError as error:
            raise SettingsError(f"{what} {cidr}: {error}") from error
        if not 8 <= network.prefixlen <= largest_prefix:
            raise SettingsError(f"{what} {cidr}: use a prefix length from 8 to {largest_prefix}")
        clash = overlapping(cidr, used)
        if clash is None:
            return cidr
        if wanted is not None:
            raise SettingsError(f"{what} {cidr} overlaps the route {clash} of this host; choose another one")
    raise SettingsError(f"every default {what} overlaps a route of this host; choose one by flag")


def choose_api_port(wanted: int | None, free: Callable[[int], bool]) -> int:
    """Return the first port of a block that is free as a whole.

    Raises:
        SettingsError: The wanted block, or each default one, is in use.
    """
    if wanted is not None and not 1024 <= wanted <= 65535 - len(PORTS):
        raise SettingsError(
            f"API port {wanted}: use 1024 to {65535 - len(PORTS)} (a block of {len(PORTS)} is taken)"
        )
    starts = (
        [wanted] if wanted is not None else [DEFAULT_API_PORT + 10 * block for block in range(PORT_BLOCKS)]
    )
    for start in starts:
        if all(free(start + offset) for offset in range(len(PORTS))):
            return start
    raise SettingsError(
        f"ports {starts[0]} to {starts[0] + len(PORTS) - 1} are in use; choose another block with --api-port"
    )


def resolve(
    home: Path,
    options: Options,
    last: Settings | None,
    *,
    node_address: Callable[[str | None, str | None], str],
    routes: Callable[[], list[Network]],
    port_is_free: Callable[[int], bool],
) -> Settings:
    """Return the settings for `up`: of the cluster that exists, otherwise from options and free defaults.

    Raises:
        SettingsError: A value cannot be used, or differs from that of the cluster that exists.
    """
    node_name = options.node_name or (last.node_name if last else DEFAULT_NODE_NAME)
    if not NODE_NAME.fullmatch(node_name):
        raise SettingsError(f"node name {node_name!r}: use lower case letters, digits and dashes, at most 63")
    node_ip = node_address(options.node_ip, last.node_ip if last else None)
    if last is not None:
        for name in ("api_port", "cluster_cidr", "service_cidr", "node_name"):
            wanted = getattr(options, name)
            if wanted is not None and wanted != getattr(last, name):
                raise SettingsError(
                    f"the cluster exists with {name} {getattr(last, name)}, not {wanted}; run `down` first"
                )
        lws = last.lws if options.lws is None else options.lws
        return Settings(home, last.api_port, last.cluster_cidr, last.service_cidr, node_name, node_ip, lws)
    taken = routes()
    cluster_cidr = choose_cidr("cluster CIDR", options.cluster_cidr, DEFAULT_CLUSTER_CIDRS, taken, 28)
    taken.append(ipaddress.IPv4Network(cluster_cidr))
    service_cidr = choose_cidr("service CIDR", options.service_cidr, DEFAULT_SERVICE_CIDRS, taken, 24)
    return Settings(
        home=home,
        api_port=choose_api_port(options.api_port, port_is_free),
        cluster_cidr=cluster_cidr,
        service_cidr=service_cidr,
        node_name=node_name,
        node_ip=node_ip,
        lws=True if options.lws is None else options.lws,
    )
