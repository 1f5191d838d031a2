"""``lab cluster``: run cells on other machines."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from lab.cli.app import HARDWARE, group
from lab.cli.options import Json, Tls, console, own_name, print_json

cluster = group("cluster", HARDWARE, "Run cells on other machines, with dask.distributed.")

Address = Annotated[
    str,
    typer.Argument(
        metavar="ADDRESS",
        help="The scheduler's HOST[:PORT], or 'local' for the cluster on this machine.",
        show_default=False,
    ),
]
Lifeline = Annotated[
    bool, typer.Option("--lifeline", help="End when standard input closes.", hidden=True)
]


@cluster.command("local")
def local(
    count: Annotated[
        int, typer.Argument(metavar="N", min=1, max=64, help="Number of local workers.")
    ],
) -> None:
    """Start a cluster on this machine, until Ctrl-C or 'lab cluster down'.

    Each worker has its own data directory and its own share of CPUs and memory. The cluster gets
    new certificates, which only this user can read.

    Examples:
        lab cluster local 2
    """
    from lab.capabilities.cluster import client as clusters
    from lab.capabilities.cluster import local as cluster_local
    from lab.store.runs import now

    clusters.load()

    def ready(address: str) -> None:
        typer.echo(f"A cluster of {count} workers is up at {address}. Stop it with Ctrl-C.")
        typer.echo(f"  {own_name()} run scenario NAME --cluster local")

    try:
        cluster_local.serve(count, now(), ready, lambda text: typer.echo(text, err=True))
    except KeyboardInterrupt:
        typer.echo("The cluster is down.")


@cluster.command("scheduler")
def scheduler(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free port.")
    ] = 8786,
    tls: Tls = None,
    lifeline: Lifeline = False,
) -> None:
    """Start the scheduler of a cluster, until Ctrl-C. Workers get this machine's images.

    Creates the cluster's certificates if there are none, and prints how to copy them.

    Examples:
        lab cluster scheduler --host 192.0.2.7
    """
    from lab.capabilities.cluster import client as clusters
    from lab.capabilities.cluster import serve as cluster_serve
    from lab.capabilities.cluster import tls as cluster_tls
    from lab.host.system import paths

    clusters.load()
    directory = (tls or paths.tls()).absolute()
    shown = f"[{host}]" if ":" in host else host
    address = clusters.address_of(f"{shown}:{port}")
    cluster_tls.make(directory)
    ends = cluster_tls.check(directory)

    def ready(address: str) -> None:
        typer.echo(address)
        if lifeline:
            return
        typer.echo(
            f"Certificates: {directory}, until {ends:%Y-%m-%d}. They allow running programs"
            " on every host of this cluster. Copy them to another machine:\n"
            f"  scp -rp {shlex.quote(str(directory))} MACHINE:lab-tls\n"
            f"  lab cluster worker {address} --tls ~/lab-tls\n"
            f"  lab run scenario NAME --cluster {address} --tls ~/lab-tls\n"
            "Stop the scheduler with Ctrl-C.",
            err=True,
        )

    door = clusters.Door(address=address, tls=directory)
    cluster_serve.serve_scheduler(host, port, door, ready, lifeline=lifeline)


@cluster.command("worker")
def worker(
    address: Address,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of this host in results.", show_default="its own name"),
    ] = None,
    share: Annotated[
        int, typer.Option("--share", min=1, max=1000, help="Offer 1/N of memory and disk space.")
    ] = 1,
    disk: Annotated[
        list[str] | None,
        typer.Option(
            "--disk",
            metavar="DEVICE",
            help="Offer a real disk, by its name in /dev/disk/by-id. Runs may read it, and erase it"
            " with --erase. Repeatable.",
            show_default=False,
        ),
    ] = None,
    tls: Tls = None,
    lifeline: Lifeline = False,
) -> None:
    """Join a cluster as a worker, until Ctrl-C.

    Examples:
        lab cluster worker 192.0.2.7 --tls ~/lab-tls
        lab cluster worker 192.0.2.7 --tls ~/lab-tls --disk /dev/disk/by-id/ata-WDC_WD10EZEX_WD1234
    """
    from lab.capabilities.cluster.hosts import serve_worker
    from lab.capabilities.cluster.local import door_of

    door = door_of(address, tls)
    serve_worker(
        door,
        name=name,
        disks=disk or (),
        share=share,
        ready=lambda own: typer.echo(f"joined {door.address} as {own}"),
        lifeline=lifeline,
    )


@cluster.command("status")
def status(address: Address = "local", tls: Tls = None, as_json: Json = False) -> None:
    """List the hosts of a cluster and what they offer.

    Examples:
        lab cluster status 192.0.2.7 --tls ~/lab-tls
    """
    from lab.capabilities.cluster.hosts import hosts_table
    from lab.capabilities.cluster.local import door_of
    from lab.capabilities.cluster.page import cluster_table

    rows = hosts_table(door_of(address, tls))
    if as_json:
        print_json({"hosts": rows})
    elif rows:
        console().print(cluster_table(rows))
    else:
        typer.echo("No host has joined. Add this one with: lab cluster worker ADDRESS")


@cluster.command("down")
def down(as_json: Json = False) -> None:
    """Stop the clusters of this machine and all their guests.

    Examples:
        lab cluster down
    """
    from lab.capabilities.cluster.local import down as end

    ended = end()
    if as_json:
        print_json({"ended": ended})
    else:
        typer.echo(f"Ended: {', '.join(ended)}" if ended else "No cluster was up.")
