"""Predicts throughput of md, QEMU's throttle and modelled drives from their rules. Pure.

A prediction takes milliseconds for a throttled cell, up to some seconds for drives with a large
cache.

::

    bucket         what one throttled disk admits, and when
    stripe         what RAID 4, 5 and 6 read and write: the stripe cache, rmw and rcw
    paths          one request to the array as requests to members, for each level
    bitmap         which writes wait for the write-intent bitmap's own
    sequential     a sequential stream, request by request
    prediction     one stream on one array
    throttle       a bucket among many requests: QEMU's queues and timers
    mechanism      a modelled drive among many requests
    md_thread      md's thread of RAID 4, 5 and 6 on modelled drives
    fio_random     fio's random numbers
    placement      where random requests fall
    concurrent     the event simulation of many requests
    load           one load of many requests on one array
    drive          one bare modelled drive, from its data sheet
    profile        a modelled drive that fits a real one
    volume         what of an LVM volume over several arrays can be followed
    cell           a scenario's cell, and why theory may have nothing to say
    bitmap_writes  how often a workload can make md write the bitmap
    explain        why, in sentences
    answer         predictions and explanations of a scenario's cell

A new kind of workload is a simulation beside ``sequential`` and ``concurrent``, a new model of a
disk a meter beside ``bucket`` or a server beside ``mechanism``.
"""
