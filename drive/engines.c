// SPDX-License-Identifier: Apache-2.0
/*
 * One library in place of eight that only network and persistent-memory engines of fio need, and which a sealed
 * guest cannot use. Debian's fio is linked to them, and they to 50 others: at each start the dynamic linker
 * executes 50 million instructions for them. SETUP in sealed.py mounts this file over them.
 *
 * The functions are those that fio 3.33 to 3.41 imports, with the versions of their symbols (ld(1), VERSION).
 */
#include <stdio.h>
#include <unistd.h>

static void left_out(const char *name)
{
	fprintf(stderr, "%s: the libraries of this ioengine are left out in a sealed guest: choose another, such as libaio\n", name);
	_exit(1);
}

#define PLAIN(name) \
	void name(void) { left_out(#name); }
#define VERSIONED(version, name) \
	PLAIN(name) \
	__asm__(".symver " #name ", " #name "@@@" #version);

PLAIN(rados_aio_create_completion) PLAIN(rados_aio_is_complete) PLAIN(rados_aio_read) PLAIN(rados_aio_release)
PLAIN(rados_aio_write) PLAIN(rados_aio_write_op_operate) PLAIN(rados_conf_read_file) PLAIN(rados_conf_set)
PLAIN(rados_connect) PLAIN(rados_create) PLAIN(rados_create2) PLAIN(rados_create_write_op)
PLAIN(rados_ioctx_create) PLAIN(rados_ioctx_destroy) PLAIN(rados_release_write_op) PLAIN(rados_remove)
PLAIN(rados_shutdown) PLAIN(rados_write) PLAIN(rados_write_op_zero) PLAIN(rbd_aio_create_completion)
PLAIN(rbd_aio_discard) PLAIN(rbd_aio_flush) PLAIN(rbd_aio_get_arg) PLAIN(rbd_aio_get_return_value)
PLAIN(rbd_aio_read) PLAIN(rbd_aio_release) PLAIN(rbd_aio_write) PLAIN(rbd_close) PLAIN(rbd_flush)
PLAIN(rbd_invalidate_cache) PLAIN(rbd_open) PLAIN(rbd_poll_io_events) PLAIN(rbd_set_image_notification)
PLAIN(rbd_stat)

VERSIONED(GFAPI_3.4.0, glfs_close) VERSIONED(GFAPI_3.4.0, glfs_creat) VERSIONED(GFAPI_3.4.0, glfs_fini)
VERSIONED(GFAPI_3.4.0, glfs_init) VERSIONED(GFAPI_3.4.0, glfs_lseek) VERSIONED(GFAPI_3.4.0, glfs_lstat)
VERSIONED(GFAPI_3.4.0, glfs_new) VERSIONED(GFAPI_3.4.0, glfs_read) VERSIONED(GFAPI_3.4.0, glfs_set_logging)
VERSIONED(GFAPI_3.4.0, glfs_set_volfile_server) VERSIONED(GFAPI_3.4.0, glfs_unlink)
VERSIONED(GFAPI_3.4.0, glfs_write)

VERSIONED(GFAPI_6.0, glfs_fdatasync) VERSIONED(GFAPI_6.0, glfs_fdatasync_async) VERSIONED(GFAPI_6.0, glfs_fsync)
VERSIONED(GFAPI_6.0, glfs_fsync_async) VERSIONED(GFAPI_6.0, glfs_ftruncate)
VERSIONED(GFAPI_6.0, glfs_pread_async) VERSIONED(GFAPI_6.0, glfs_pwrite_async)

VERSIONED(IBVERBS_1.0, ibv_create_comp_channel) VERSIONED(IBVERBS_1.0, ibv_destroy_comp_channel)

VERSIONED(IBVERBS_1.1, ibv_ack_cq_events) VERSIONED(IBVERBS_1.1, ibv_alloc_pd)
VERSIONED(IBVERBS_1.1, ibv_create_cq) VERSIONED(IBVERBS_1.1, ibv_dealloc_pd)
VERSIONED(IBVERBS_1.1, ibv_dereg_mr) VERSIONED(IBVERBS_1.1, ibv_destroy_cq)
VERSIONED(IBVERBS_1.1, ibv_destroy_qp) VERSIONED(IBVERBS_1.1, ibv_get_cq_event)
VERSIONED(IBVERBS_1.1, ibv_reg_mr) VERSIONED(IBVERBS_1.1, ibv_wc_status_str)

VERSIONED(LIBNBD_1.0, nbd_aio_command_completed) VERSIONED(LIBNBD_1.0, nbd_aio_flush)
VERSIONED(LIBNBD_1.0, nbd_aio_peek_command_completed) VERSIONED(LIBNBD_1.0, nbd_aio_pread)
VERSIONED(LIBNBD_1.0, nbd_aio_pwrite) VERSIONED(LIBNBD_1.0, nbd_aio_trim) VERSIONED(LIBNBD_1.0, nbd_close)
VERSIONED(LIBNBD_1.0, nbd_connect_uri) VERSIONED(LIBNBD_1.0, nbd_create) VERSIONED(LIBNBD_1.0, nbd_get_debug)
VERSIONED(LIBNBD_1.0, nbd_get_errno) VERSIONED(LIBNBD_1.0, nbd_get_error) VERSIONED(LIBNBD_1.0, nbd_get_size)
VERSIONED(LIBNBD_1.0, nbd_poll)

VERSIONED(LIBPMEMBLK_1.0, pmemblk_bsize) VERSIONED(LIBPMEMBLK_1.0, pmemblk_close)
VERSIONED(LIBPMEMBLK_1.0, pmemblk_create) VERSIONED(LIBPMEMBLK_1.0, pmemblk_nblock)
VERSIONED(LIBPMEMBLK_1.0, pmemblk_open) VERSIONED(LIBPMEMBLK_1.0, pmemblk_read)
VERSIONED(LIBPMEMBLK_1.0, pmemblk_write)

VERSIONED(LIBPMEM_1.0, pmem_drain) VERSIONED(LIBPMEM_1.0, pmem_errormsg) VERSIONED(LIBPMEM_1.0, pmem_map_file)
VERSIONED(LIBPMEM_1.0, pmem_memcpy) VERSIONED(LIBPMEM_1.0, pmem_memcpy_persist)
VERSIONED(LIBPMEM_1.0, pmem_unmap)

VERSIONED(RDMACM_1.0, rdma_accept) VERSIONED(RDMACM_1.0, rdma_ack_cm_event)
VERSIONED(RDMACM_1.0, rdma_bind_addr) VERSIONED(RDMACM_1.0, rdma_connect)
VERSIONED(RDMACM_1.0, rdma_create_event_channel) VERSIONED(RDMACM_1.0, rdma_create_id)
VERSIONED(RDMACM_1.0, rdma_create_qp) VERSIONED(RDMACM_1.0, rdma_destroy_id)
VERSIONED(RDMACM_1.0, rdma_disconnect) VERSIONED(RDMACM_1.0, rdma_event_str)
VERSIONED(RDMACM_1.0, rdma_get_cm_event) VERSIONED(RDMACM_1.0, rdma_listen)
VERSIONED(RDMACM_1.0, rdma_resolve_addr) VERSIONED(RDMACM_1.0, rdma_resolve_route)
