"""fio's options, as listed by fio 3.33 (Debian 12) and fio 3.39 (Debian 13).

Made from ``fio --cmdhelp=all``, ``fio --cmdhelp=OPTION`` (types and other names) and ``fio
--enghelp=ENGINE`` of both. ``name`` is left out: the lab names the job.
"""

from __future__ import annotations

from typing import Final


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SIZES: Final = words(
    """
    ba bs bsrange buffer_compress_chunk filesize hugepage-size io_size log_compression offset
    offset_align offset_increment rate rate_min replay_align size verify_interval verify_offset
    zonecapacity zonerange zonesize zoneskip
    """
)
"""Bytes: fio's ``4k`` is 4096; a comma separates reads, writes and trims."""

TIMES: Final = words(
    """
    latency_target latency_window ramp_time runtime startdelay steadystate_check_interval
    steadystate_duration steadystate_ramp_time
    """
)
"""Times: seconds, unless a unit says otherwise."""
MICROSECONDS: Final = words("latency_target latency_window")
"""For these, fio takes a plain number as microseconds (``options.c``: ``is_time`` without
``is_seconds``)."""

SWITCHES: Final = words(
    """
    allow_file_create allow_mounted_write atomic block_error_percentiles bs_unaligned buffered
    cgroup_nodelete clat_percentiles create_fsync create_on_open create_only create_serialize
    dedupe_global direct disable_bw_measurement disable_clat disable_lat disable_slat disk_util
    do_verify end_fsync error_dump exitall exitall_on_error experimental_verify fdp file_append
    fill_device fsync_on_close group_reporting gtod_reduce ignore_zone_limits invalidate
    lat_percentiles latency_run log_alternate_epoch log_issue_time log_max_value log_offset
    log_prio log_store_compressed new_group norandommap overwrite per_job_logs pre_read
    randrepeat rate_ignore_thinktime read_beyond_wp read_iolog_chunked refill_buffers
    replay_no_stall scramble_buffers serialize_overlap slat_percentiles stats stonewall thread
    time_based trim_verify_zero unique_filename unlink unlink_each_loop verify_dump verify_fatal
    verify_header_seed verify_only verify_state_load verify_state_save verify_write_sequence
    zero_buffers
    """
)
"""On or off."""

NUMBERS: Final = words(
    """
    buffer_compress_percentage bwavgtime cgroup_weight cpumask dedupe_percentage
    dedupe_working_set_percentage fdatasync flow flow_id flow_sleep fsync gid gtod_cpu iodepth
    iodepth_batch iodepth_batch_complete_max iodepth_batch_complete_min iodepth_low iopsavgtime
    job_max_open_zones job_start_clock_id log_alternate_epoch_clock_id log_avg_msec log_entries
    log_hist_coarseness log_hist_msec loops max_latency max_open_zones nice nrfiles num_range
    numjobs openfiles percentage_random prio prioclass priohint rate_cycle rate_iops
    rate_iops_min replay_scale replay_time_scale rwmixread rwmixwrite significant_figures
    thinkcycles thinktime thinktime_blocks thinktime_iotime thinktime_spin trim_backlog_batch
    trim_percentage uid verify_async verify_backlog_batch write_barrier
    """
)
"""Integers; a comma separates reads, writes and trims."""

WORDS: Final = words(
    """
    bssplit buffer_pattern cgroup clocksource continue_on_error cpus_allowed cpus_allowed_policy
    dataplacement dedupe_mode description directory dp_scheme exec_postrun exec_prerun exit_what
    fadvise_hint fallocate file_service_type filename filename_format ignore_error
    io_submit_mode ioengine ioscheduler kb_base latency_percentile lockfile lockmem
    log_compression_cpus log_window_value mem merge_blktrace_file merge_blktrace_iters
    merge_blktrace_scalars numa_cpu_nodes numa_mem_policy number_ios opendir percentile_list
    plid_select plids profile random_distribution random_generator randseed rate_process
    read_iolog replay_redirect replay_skip rw rw_sequencer steadystate sync sync_file_range
    thinktime_blocks_type trim_backlog unified_rw_reporting unit_base verify verify_backlog
    verify_pattern wait_for write_bw_log write_hint write_hist_log write_iolog write_iops_log
    write_lat_log zone_reset_frequency zone_reset_threshold zonemode
    """
)
"""Anything else; only fio interprets it."""

ENGINE_WORDS: Final = words(
    """
    apptag apptag_mask arguments bindname brick busy_poll clientname clustername cmd_type
    cmdprio cmdprio_bssplit cmdprio_class cmdprio_hint cmdprio_percentage conf cpuchunks cpuload
    cpumode deac donorname exit_on_io_done fixedbufs force_async grace_time hipri
    hipri_percentage hostname inplace interface libaio_vectored listen md_per_io_size mss
    nfs_url nodelay nonvectored nowait pi_act pi_chk pingpong pool port program protocol rbdname
    readfua registerfiles sg_write_mode single-instance skip_bad sqthread_poll sqthread_poll_cpu
    stat_type std_redirect stream_id thp touch_objects ttl uncached uri userspace_reap verb
    verify_mode volume window_size write_mode writefua
    """
)
"""Options of single I/O engines."""

OTHER_NAMES: Final = {
    "allrandrepeat": "randrepeat",
    "blockalign": "ba",
    "blocksize": "bs",
    "blocksize_range": "bsrange",
    "blocksize_unaligned": "bs_unaligned",
    "data_placement": "dataplacement",
    "disable_bw": "disable_bw_measurement",
    "fdp_pli": "plids",
    "fdp_pli_select": "plid_select",
    "fileoffset": "offset",
    "fill_fs": "fill_device",
    "io_limit": "io_size",
    "iodepth_batch_complete": "iodepth_batch_complete_min",
    "iodepth_batch_submit": "iodepth_batch",
    "iomem": "mem",
    "log_unix_epoch": "log_alternate_epoch",
    "nr_files": "nrfiles",
    "ratecycle": "rate_cycle",
    "ratemin": "rate_min",
    "readwrite": "rw",
    "ss": "steadystate",
    "ss_dur": "steadystate_duration",
    "ss_interval": "steadystate_check_interval",
    "ss_ramp": "steadystate_ramp_time",
    "timeout": "runtime",
    "wait_for_previous": "stonewall",
}
"""fio's alternative names of options."""

OPTIONS: Final = SIZES | TIMES | SWITCHES | NUMBERS | WORDS | ENGINE_WORDS
"""All options by their main name."""
