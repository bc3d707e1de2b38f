/* libfabric's calls are inline functions that go through tables of an endpoint's provider. Here are those that
 * lib.rs needs, each as one function, so that the C compiler and not a copy of the headers knows the layouts.
 *
 * The library is opened when it is first needed: programs start without it, and can say that it is missing. */

#include <dlfcn.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API FI_VERSION(1, 17)

static struct {
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    void (*freeinfo)(struct fi_info *);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    const char *(*strerror)(int);
    char failure[256];
} lib;

static void load(void)
{
    void *handle = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        snprintf(lib.failure, sizeof lib.failure, "%s", dlerror());
        return;
    }
    lib.getinfo = dlsym(handle, "fi_getinfo");
    lib.freeinfo = dlsym(handle, "fi_freeinfo");
    lib.dupinfo = dlsym(handle, "fi_dupinfo");
    lib.fabric = dlsym(handle, "fi_fabric");
    lib.strerror = dlsym(handle, "fi_strerror");
    if (!lib.getinfo || !lib.freeinfo || !lib.dupinfo || !lib.fabric || !lib.strerror)
        snprintf(lib.failure, sizeof lib.failure, "libfabric.so.1 lacks a function");
}

struct tf_endpoint {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fid_ep *ep;
    /* -1 when the provider has none. */
    int fd;
    uint64_t keys;
};

struct tf_done {
    void *context;
    uint64_t len;
    /* 0, or a positive FI_E... */
    int32_t error;
    int32_t received;
};

const char *tf_strerror(int error)
{
    return lib.strerror ? lib.strerror(error) : "libfabric is missing";
}

static int start(struct tf_endpoint *e, const char *provider, const char *node, size_t cq_size, const char **what)
{
    struct fi_info *hints = lib.dupinfo(NULL);
    int ret;

    *what = "fi_getinfo";
    if (!hints)
        return -FI_ENOMEM;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_TAGGED;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    /* Messages of one peer are matched in the order in which it sent them. */
    hints->tx_attr->msg_order = FI_ORDER_SAS;
    hints->rx_attr->msg_order = FI_ORDER_SAS;
    hints->fabric_attr->prov_name = strdup(provider);
    ret = lib.getinfo(API, node, NULL, node ? FI_SOURCE : 0, hints, &e->info);
    if (!ret && node && e->info->addr_format == FI_ADDR_STR) {
        /* Inside one node: it would take the address for the endpoint's name, which must differ from all others. */
        lib.freeinfo(e->info);
        e->info = NULL;
        ret = lib.getinfo(API, NULL, NULL, 0, hints, &e->info);
    }
    lib.freeinfo(hints);
    if (ret)
        return ret;
    *what = "fi_fabric";
    if ((ret = lib.fabric(e->info->fabric_attr, &e->fabric, NULL)))
        return ret;
    *what = "fi_domain";
    if ((ret = fi_domain(e->fabric, e->info, &e->domain, NULL)))
        return ret;
    *what = "fi_cq_open";
    struct fi_cq_attr cq = {.size = cq_size, .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD};
    ret = fi_cq_open(e->domain, &cq, &e->cq, NULL);
    if (ret == -FI_ENOSYS) {
        cq.wait_obj = FI_WAIT_NONE;
        ret = fi_cq_open(e->domain, &cq, &e->cq, NULL);
    } else if (!ret) {
        *what = "FI_GETWAIT";
        ret = fi_control(&e->cq->fid, FI_GETWAIT, &e->fd);
    }
    if (ret)
        return ret;
    *what = "fi_av_open";
    struct fi_av_attr av = {.type = FI_AV_TABLE};
    if ((ret = fi_av_open(e->domain, &av, &e->av, NULL)))
        return ret;
    *what = "fi_endpoint";
    if ((ret = fi_endpoint(e->domain, e->info, &e->ep, NULL)))
        return ret;
    *what = "fi_ep_bind";
    if ((ret = fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV)))
        return ret;
    if ((ret = fi_ep_bind(e->ep, &e->av->fid, 0)))
        return ret;
    *what = "fi_enable";
    return fi_enable(e->ep);
}

/* No operation completes after this; buffers may be freed. */
void tf_close_endpoint(struct tf_endpoint *e)
{
    if (e->ep)
        fi_close(&e->ep->fid);
    e->ep = NULL;
}

/* After tf_close_endpoint and the release of all buffers. */
void tf_free(struct tf_endpoint *e)
{
    tf_close_endpoint(e);
    if (e->av)
        fi_close(&e->av->fid);
    if (e->cq)
        fi_close(&e->cq->fid);
    if (e->domain)
        fi_close(&e->domain->fid);
    if (e->fabric)
        fi_close(&e->fabric->fid);
    if (e->info)
        lib.freeinfo(e->info);
    free(e);
}

/* Libraries of providers (libinfinipath, for one) take signals over when they are loaded, and call exit() in a handler. */
static const int SIGNALS[] = {SIGINT, SIGTERM, SIGHUP, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV};
enum { SIGNALS_COUNT = sizeof SIGNALS / sizeof *SIGNALS };

static int open_endpoint(const char *provider, const char *node, size_t cq_size, struct tf_endpoint **out, char *failure, size_t room)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *what = "";
    struct tf_endpoint *e;
    int ret;

    pthread_once(&once, load);
    if (lib.failure[0]) {
        snprintf(failure, room, "%s", lib.failure);
        return -FI_ENOSYS;
    }
    e = calloc(1, sizeof *e);
    if (!e)
        return -FI_ENOMEM;
    e->fd = -1;
    ret = start(e, provider, node, cq_size, &what);
    if (ret) {
        snprintf(failure, room, "%s: %s", what, lib.strerror(-ret));
        tf_free(e);
        return ret;
    }
    *out = e;
    return 0;
}

/* Signals are handled afterwards as before; those that end a process wait meanwhile, if they come to this thread. One thread at
 * a time: a second one would take the handlers that a provider brings to the first for those that were there before. */
int tf_open(const char *provider, const char *node, size_t cq_size, struct tf_endpoint **out, char *failure, size_t room)
{
    static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
    struct sigaction before[SIGNALS_COUNT];
    sigset_t waiting, mask;
    int i, ret;

    sigemptyset(&waiting);
    sigaddset(&waiting, SIGINT);
    sigaddset(&waiting, SIGTERM);
    sigaddset(&waiting, SIGHUP);
    pthread_mutex_lock(&opening);
    pthread_sigmask(SIG_BLOCK, &waiting, &mask);
    for (i = 0; i < SIGNALS_COUNT; i++)
        sigaction(SIGNALS[i], NULL, &before[i]);
    ret = open_endpoint(provider, node, cq_size, out, failure, room);
    for (i = 0; i < SIGNALS_COUNT; i++)
        sigaction(SIGNALS[i], &before[i], NULL);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    pthread_mutex_unlock(&opening);
    return ret;
}

int tf_fd(const struct tf_endpoint *e)
{
    return e->fd;
}

/* Names are text that ends with a zero byte, of any length. */
int tf_named_by_text(const struct tf_endpoint *e)
{
    return e->info->addr_format == FI_ADDR_STR;
}

int tf_needs_registration(const struct tf_endpoint *e)
{
    return !!(e->info->domain_attr->mr_mode & FI_MR_LOCAL);
}

int tf_register(struct tf_endpoint *e, const void *bytes, size_t len, struct fid_mr **mr)
{
    uint64_t key = __atomic_add_fetch(&e->keys, 1, __ATOMIC_RELAXED);
    return fi_mr_reg(e->domain, bytes, len, FI_SEND | FI_RECV, 0, key, 0, mr, NULL);
}

void tf_unregister(struct fid_mr *mr)
{
    fi_close(&mr->fid);
}

int tf_name(struct tf_endpoint *e, void *name, size_t *len)
{
    return fi_getname(&e->ep->fid, name, len);
}

/* The caller has checked that `name` is as long as names of this provider are, or ends with a zero byte. */
int tf_insert(struct tf_endpoint *e, const void *name, uint64_t *peer)
{
    fi_addr_t addr = FI_ADDR_NOTAVAIL;
    int ret = fi_av_insert(e->av, name, 1, &addr, 0, NULL);
    *peer = addr;
    if (ret < 0)
        return ret;
    return ret == 1 ? 0 : -FI_EADDRNOTAVAIL;
}

void tf_remove(struct tf_endpoint *e, uint64_t peer)
{
    fi_addr_t addr = peer;
    fi_av_remove(e->av, &addr, 1, 0);
}

static void *desc(struct fid_mr *mr)
{
    return mr ? fi_mr_desc(mr) : NULL;
}

ssize_t tf_send(struct tf_endpoint *e, const void *bytes, size_t len, struct fid_mr *mr, uint64_t peer, uint64_t tag,
                void *context)
{
    return fi_tsend(e->ep, bytes, len, desc(mr), peer, tag, context);
}

ssize_t tf_receive(struct tf_endpoint *e, void *bytes, size_t len, struct fid_mr *mr, uint64_t tag, void *context)
{
    return fi_trecv(e->ep, bytes, len, desc(mr), FI_ADDR_UNSPEC, tag, 0, context);
}

void tf_cancel(struct tf_endpoint *e, void *context)
{
    fi_cancel(&e->ep->fid, context);
}

/* 0 when the descriptor may be waited on, -FI_EAGAIN when there is something to read first. */
int tf_try_wait(struct tf_endpoint *e)
{
    struct fid *fids[1] = {&e->cq->fid};
    return fi_trywait(e->fabric, fids, 1);
}

/* Up to 16 completions; the number, or a negative error of the queue itself. */
ssize_t tf_completions(struct tf_endpoint *e, struct tf_done *out)
{
    struct fi_cq_tagged_entry entries[16];
    struct fi_cq_err_entry failed = {0};
    ssize_t n = fi_cq_read(e->cq, entries, 16);

    if (n == -FI_EAGAIN)
        return 0;
    if (n == -FI_EAVAIL) {
        n = fi_cq_readerr(e->cq, &failed, 0);
        if (n == -FI_EAGAIN)
            return 0;
        if (n < 0)
            return n;
        out[0] = (struct tf_done){.context = failed.op_context, .error = failed.err ? failed.err : FI_EOTHER};
        return 1;
    }
    for (ssize_t i = 0; i < n; i++)
        out[i] = (struct tf_done){
            .context = entries[i].op_context, .len = entries[i].len, .received = !!(entries[i].flags & FI_RECV)};
    return n;
}
