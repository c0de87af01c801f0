"""Command line of the embedded cluster: up, down, status, load-image, kubeconfig.

Owns arguments, exit codes (0 done, 1 failed, 2 wrong use, 3 not up) and how an error looks.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tools.cluster import host
from tools.cluster.binaries import cached_tool, locked
from tools.cluster.cluster import Cluster, prepare_programs, record_footprint
from tools.cluster.errors import ClusterError, StartError
from tools.cluster.images import load_image
from tools.cluster.node import KUBE_PROXY_TABLE
from tools.cluster.packages import program
from tools.cluster.processes import run
from tools.cluster.progress import say
from tools.cluster.settings import Options, Places, Settings, resolve
from tools.cluster.status import describe
from tools.cluster.teardown import Teardown, exists
from tools.paths import cache_dir

NOT_UP = 3
LOCK_TIMEOUT_SECONDS = 1200.0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.cluster",
        description="An embedded single-node Kubernetes for demo and tests. Needs root, except `kubeconfig`.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the cluster, or repair it, or confirm that it is up")
    up.add_argument(
        "--api-port", type=int, help="API server's port; 8 more after it are used (default 16443)"
    )
    up.add_argument("--cluster-cidr", help="addresses of pods (default 10.244.0.0/24, or a free one like it)")
    up.add_argument(
        "--service-cidr", help="addresses of services (default 10.96.0.0/16, or a free one like it)"
    )
    up.add_argument("--node-name", help="name of the node (default structuredllm)")
    up.add_argument("--node-ip", help="address of the node (default: that of the default route)")
    up.add_argument(
        "--lws", action=argparse.BooleanOptionalAction, help="LeaderWorkerSet controller (default on)"
    )
    commands.add_parser("down", help="remove all that `up` made; images and logs stay in the cache")
    commands.add_parser("status", help="say what runs; exit code 0 when the cluster works, 3 when not")
    load = commands.add_parser("load-image", help="import image archives (OCI or docker) into the node")
    load.add_argument("archive", type=Path, nargs="+")
    commands.add_parser("kubeconfig", help="print the path of the kubeconfig")
    return parser


def options_of(arguments: argparse.Namespace) -> Options:
    """Return the options of `up`: flags first, then the environment."""
    flags = Options(
        api_port=arguments.api_port,
        cluster_cidr=arguments.cluster_cidr,
        service_cidr=arguments.service_cidr,
        node_name=arguments.node_name,
        node_ip=arguments.node_ip,
        lws=arguments.lws,
    )
    return flags.over(Options.from_environment(os.environ))


def up(home: Path, options: Options) -> int:
    """Start, repair or confirm the cluster."""
    host.require_root("up")
    begin = time.monotonic()
    places = Places(home)
    with locked(home / ".lock", "another `up` or `down`", LOCK_TIMEOUT_SECONDS):
        last = Settings.load(home)
        prepare_programs(places, lws=options.lws if options.lws is not None else not last or last.lws)
        if last is None:
            tables = run([str(program("nft")), "list", "tables"], what="list nft tables", timeout_seconds=10)
            host.refuse_second_kube_proxy(tables, KUBE_PROXY_TABLE)
        settings = resolve(
            home,
            options,
            last,
            node_address=host.node_address,
            routes=host.routes,
            port_is_free=host.port_is_free,
        )
        places.state.mkdir(parents=True, exist_ok=True, mode=0o711)
        record_footprint(places)
        settings.save()
        try:
            changed = Cluster(settings).up()
        except StartError as error:
            hint = "run `up` again, or `down` and then `up` to start afresh"
            raise StartError(f"{error.cause.rstrip()}\n{hint}", log=error.log) from error
    spent = time.monotonic() - begin
    say(f"cluster: {'up' if changed else 'already up, nothing to do'} ({spent:.1f} s)")
    say(f"cluster: export KUBECONFIG={places.kubeconfig}")
    return 0


def down(home: Path) -> int:
    """Remove the cluster."""
    host.require_root("down")
    places = Places(home)
    with locked(home / ".lock", "another `up` or `down`", LOCK_TIMEOUT_SECONDS):
        if not exists(places):
            say("cluster: not up, nothing to do")
            return 0
        Teardown(places, cached_tool("ctr")).run()
    return 0


def existing(home: Path) -> Settings:
    """Return the settings of the cluster that exists.

    Raises:
        ClusterError: There is none.
    """
    settings = Settings.load(home)
    if settings is None:
        raise ClusterError("the cluster is not up; run `python -m tools.cluster up` as root")
    return settings


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = build_parser().parse_args(argv)
    home = cache_dir("cluster")
    # So that a build or a half-written step is ended properly by `kill` as well as by Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if arguments.command == "up":
            return up(home, options_of(arguments))
        if arguments.command == "down":
            return down(home)
        if arguments.command == "status":
            if Settings.load(home) is None:
                print("not up")
                return NOT_UP
            works, text = describe(existing(home))
            print(text)
            return 0 if works else NOT_UP
        if arguments.command == "load-image":
            host.require_root("load-image")
            for archive in arguments.archive:
                for name in load_image(existing(home).places, archive.resolve()):
                    print(name)
            return 0
        print(existing(home).places.kubeconfig)
    except (ClusterError, OSError) as error:
        say(f"cluster: error: {error}")
        return 1
    except KeyboardInterrupt:
        say("cluster: interrupted; run the same command again to go on, or `down` to remove everything")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
