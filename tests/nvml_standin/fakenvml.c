/* fakenvml.c - stand-in for libnvidia-ml.so.1, for tests on machines without GPUs.
 *
 * Build:  gcc -O2 -fPIC -shared -pthread -Wl,-soname,libnvidia-ml.so.1 -o DIR/libnvidia-ml.so.1 fakenvml.c
 *         (an "old driver" = the same plus -Wl,--version-script=F, F hiding symbols: {local: nvmlX_v3;};)
 * Use:    LD_LIBRARY_PATH=DIR FAKE_NVML_SCENARIO=file [FAKE_NVML_CTL=file] python ...
 *
 * Scenario, one directive a line, '#' starts a comment; no file = 8 idle H100.
 *   driver V | nvml V | cuda N | init_error CODE | latency_us N | t0 MONOTONIC_NS | unprivileged 1 | legacy_v3 1
 *   gpus N [total=B] [reserved=B] [name=a_b]        N identical GPUs (clears what came before)
 *   gpu I [name=] [uuid=] [bus=] [total=] [reserved=] [mig=0|1] [numa=] [util=] [power_mw=] [link=N] [switch=0|1]
 *                                                   link=N active NVLinks, to a switch or straight to the other GPUs in turn
 *   mig I slot=S gi=G ci=C uuid=MIG-.. total=B      a MIG device on GPU I
 *   mem I[/S] [lin] T_MS:BYTES|na ...               memory beyond the listed processes', step or linear ('na' = not available)
 *   pulse I[/S] PERIOD_MS WIDTH_MS BYTES            repeating spike, added to mem
 *   proc I[/S] PID [G] [lin] T_MS:BYTES|na|gone ... per-process memory ('na' = not available, 'gone' = exited)
 *   err I|* FUNCTION|* CODE [from=MS] [to=MS] [after=CALLS]
 *   xid I T_MS CODE                                 a critical Xid event
 * Time is CLOCK_MONOTONIC - t0, or ctl->clock_ns when that is not 0 (a test's own clock).
 * used(v2) = mem + pulse + processes + ctl->gpu[i].add;  used(v1) = used(v2) + reserved.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
enum { OK, UNINIT, INVAL, NOTSUP, NOPERM, NOTFOUND = 6, TOOSMALL = 7, TIMEOUT = 10, BADVER = 25 };
#define NA (~0ull)
#define GONE (~0ull - 1)
#define MAXG 16
#define MAXM 7
#define MAXP 32

typedef struct { int n, lin; double *t; u64 *v; } line_t;            /* a timeline */
typedef struct { u32 pid; char type; u32 gi, ci; line_t l; } proc_t;
typedef struct dev {
    struct dev *parent, *mig[MAXM];
    int index, numa, migmode, nproc, gi, ci, link, sw, util, power_mw;
    char name[96], uuid[96], bus[32];
    u64 total, reserved, pulse_b;
    double pulse_p, pulse_w;
    line_t mem;
    proc_t proc[MAXP];
} gdev;
#define PARENT(d) ((d)->parent ? (d)->parent : (d))
typedef struct { int gpu, code; char fn[64]; double from, to, after; _Atomic u64 seen; } rule_t;
typedef struct { int gpu; double t; u64 code; _Atomic int done; } xid_t;
/* Shared with the test: 8-byte fields only, so a Python struct/memoryview can read and write it. */
typedef struct {
    _Atomic u64 clock_ns, inits, shutdowns, init_error;
    struct { _Atomic u64 add, error; } gpu[MAXG];
    struct { _Atomic u64 key, calls; char name[48]; } fn[96];
} ctl_t;

static struct {
    int refs, ngpu, nrule, nxid, unpriv, legacy_v3;
    u32 init_error, cuda, latency_us;
    u64 t0;
    char driver[80], nvml[80];
    gdev gpu[MAXG];
    rule_t rule[64];
    xid_t xid[16];
} S;
static ctl_t local_ctl, *C = &local_ctl;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static u64 mono(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static double now_ms(void) { u64 v = C->clock_ns; return v ? v / 1e6 : (double)(mono() - S.t0) / 1e6; }

static u64 at(const line_t *l, double t) {
    if (!l->n || t < l->t[0]) return l->n && l->lin ? l->v[0] : 0;
    int a = 0, b = l->n - 1;
    while (a < b) { int m = (a + b + 1) / 2; if (l->t[m] <= t) a = m; else b = m - 1; }
    if (!l->lin || a + 1 >= l->n || l->v[a] >= GONE || l->v[a + 1] >= GONE) return l->v[a];
    double f = (t - l->t[a]) / (l->t[a + 1] - l->t[a]);
    return (u64)((double)l->v[a] + f * ((double)l->v[a + 1] - (double)l->v[a]));
}
static u64 alive(const proc_t *p, double t) { return p->l.n && t < p->l.t[0] ? GONE : at(&p->l, t); }
static int unknown(const gdev *d) { return at(&d->mem, now_ms()) == NA; }
static u64 used(const gdev *d, double t) {
    u64 s = at(&d->mem, t);
    for (int i = 0; i < d->nproc; i++) {
        u64 v = alive(&d->proc[i], t);
        if (v < GONE) s += v;
    }
    if (d->pulse_p > 0 && t >= 0 && t - d->pulse_p * (u64)(t / d->pulse_p) < d->pulse_w) s += d->pulse_b;
    for (int i = 0; i < MAXM; i++) if (d->mig[i]) s += used(d->mig[i], t);
    if (!d->parent) s += C->gpu[d->index].add;
    return s < d->total - d->reserved ? s : d->total - d->reserved;
}

/* ---- scenario ---- */
static void fresh(gdev *d, int i) {
    memset(d, 0, sizeof *d);
    d->index = i; d->numa = i / 4; d->total = 85520809984ull; d->reserved = 549453824ull;
    d->util = 0; d->power_mw = 70000; d->gi = d->ci = -1; d->link = 18; d->sw = 1;
    strcpy(d->name, "NVIDIA H100 80GB HBM3");
    snprintf(d->uuid, sizeof d->uuid, "GPU-fa4e0000-0000-4000-8000-%012x", i);
    snprintf(d->bus, sizeof d->bus, "%08X:%02X:00.0", 0, 0x07 + 8 * i);
}
static char *word(char **sp) { return strtok_r(NULL, " \t\r\n", sp); }
static void points(line_t *l, char **sp) {
    for (char *w; (w = word(sp));) {
        char *c = strchr(w, ':');
        if (!c) { l->lin |= !strcmp(w, "lin"); continue; }
        l->t = realloc(l->t, (l->n + 1) * sizeof *l->t);
        l->v = realloc(l->v, (l->n + 1) * sizeof *l->v);
        l->t[l->n] = atof(w);
        l->v[l->n++] = !strcmp(c + 1, "na") ? NA : !strcmp(c + 1, "gone") ? GONE : strtoull(c + 1, NULL, 0);
    }
}
static void attrs(gdev *d, char **sp) {
    struct { const char *k; int *i; } ints[] = {{"mig", &d->migmode}, {"numa", &d->numa}, {"util", &d->util}, {"power_mw", &d->power_mw},
        {"link", &d->link}, {"switch", &d->sw}, {"slot", &d->index}, {"gi", &d->gi}, {"ci", &d->ci}};
    for (char *w; (w = word(sp));) {
        char *v = strchr(w, '=');
        if (!v) continue;
        *v++ = 0;
        if (!strcmp(w, "name")) { snprintf(d->name, sizeof d->name, "%s", v); for (char *c = d->name; *c; c++) if (*c == '_') *c = ' '; }
        else if (!strcmp(w, "uuid")) snprintf(d->uuid, sizeof d->uuid, "%s", v);
        else if (!strcmp(w, "bus")) snprintf(d->bus, sizeof d->bus, "%s", v);
        else if (!strcmp(w, "total")) d->total = strtoull(v, NULL, 0);
        else if (!strcmp(w, "reserved")) d->reserved = strtoull(v, NULL, 0);
        for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) if (!strcmp(w, ints[i].k)) *ints[i].i = atoi(v);
    }
}
static gdev *which(const char *w) {
    int i = atoi(w); const char *s = strchr(w, '/');
    return i < 0 || i >= S.ngpu ? NULL : !s ? &S.gpu[i] : atoi(s + 1) < MAXM ? S.gpu[i].mig[atoi(s + 1)] : NULL;
}
#define IS(word) (!strcmp(k, word))
static void load(void) {
    const char *path = getenv("FAKE_NVML_SCENARIO"), *ctl = getenv("FAKE_NVML_CTL");
    memset(&S, 0, sizeof S);
    S.t0 = mono(); S.cuda = 12040; S.ngpu = 8;
    strcpy(S.driver, "550.163.01"); strcpy(S.nvml, "12.550.163.01");
    for (int i = 0; i < MAXG; i++) fresh(&S.gpu[i], i);
    if (ctl && C == &local_ctl) {
        int fd = open(ctl, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        void *p = ftruncate(fd, sizeof *C) ? MAP_FAILED : mmap(NULL, sizeof *C, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p != MAP_FAILED) C = p;
        if (fd >= 0) close(fd);
    }
    FILE *f = path ? fopen(path, "re") : NULL;
    char *buf = NULL, *sp, *k, *w; size_t cap = 0; gdev *d;
    while (f && getline(&buf, &cap, f) > 0) {
        if ((w = strchr(buf, '#'))) *w = 0;
        if (!(k = strtok_r(buf, " \t\r\n", &sp))) continue;
        if (!(w = word(&sp))) continue;
        if (IS("driver")) snprintf(S.driver, sizeof S.driver, "%s", w);
        else if (IS("nvml")) snprintf(S.nvml, sizeof S.nvml, "%s", w);
        else if (IS("cuda")) S.cuda = atoi(w);
        else if (IS("init_error")) S.init_error = atoi(w);
        else if (IS("latency_us")) S.latency_us = atoi(w);
        else if (IS("t0")) S.t0 = strtoull(w, NULL, 0);
        else if (IS("unprivileged")) S.unpriv = atoi(w);
        else if (IS("legacy_v3")) S.legacy_v3 = atoi(w);
        else if (IS("gpus")) {
            S.ngpu = atoi(w) < MAXG ? atoi(w) : MAXG;
            char *rest = strdup(sp ? sp : "");
            for (int i = 0; i < S.ngpu; i++) { char *q = strdup(rest); fresh(&S.gpu[i], i); attrs(&S.gpu[i], &q); }
        }
        else if (IS("gpu") && (d = which(w))) attrs(d, &sp);
        else if (IS("mig") && (d = which(w))) {
            gdev *m = malloc(sizeof *m); *m = *d;
            m->parent = d; m->nproc = 0; m->reserved = 0; memset(&m->mem, 0, sizeof m->mem); memset(m->mig, 0, sizeof m->mig);
            attrs(m, &sp);
            if (m->index >= 0 && m->index < MAXM) { d->mig[m->index] = m; d->migmode = 1; }
        }
        else if (IS("mem") && (d = which(w))) points(&d->mem, &sp);
        else if (IS("pulse") && (d = which(w))) {
            char *a = word(&sp), *b = word(&sp), *c = word(&sp);
            if (c) d->pulse_p = atof(a), d->pulse_w = atof(b), d->pulse_b = strtoull(c, NULL, 0);
        }
        else if (IS("proc") && (d = which(w)) && d->nproc < MAXP) {
            proc_t *p = &d->proc[d->nproc++];
            char *a = word(&sp);
            p->pid = a ? atoi(a) : 0; p->type = sp && sp[0] == 'G' ? 'G' : 'C'; p->gi = d->gi; p->ci = d->ci;
            points(&p->l, &sp);
        }
        else if (IS("err") && S.nrule < 64) {
            rule_t *r = &S.rule[S.nrule];
            char *a = word(&sp), *b = word(&sp), *o;
            if (!b) continue;
            r->gpu = *w == '*' ? -1 : atoi(w); snprintf(r->fn, sizeof r->fn, "%s", a); r->code = atoi(b); r->to = 1e300;
            while ((o = word(&sp))) *(*o == 'f' ? &r->from : *o == 't' ? &r->to : &r->after) = atof(strchr(o, '=') ? strchr(o, '=') + 1 : "0");
            S.nrule++;
        }
        else if (IS("xid") && S.nxid < 16) {
            xid_t *x = &S.xid[S.nxid++]; char *a = word(&sp), *b = word(&sp);
            x->gpu = atoi(w); x->t = a ? atof(a) : 0; x->code = b ? atoi(b) : 79;
        }
    }
    free(buf); if (f) fclose(f);
}
/* ---- every call passes here: counted, delayed, checked, failed on demand ---- */
static int enter(const char *fn, int *slot, const gdev *d, int wants) {
    if (!S.refs) return UNINIT;
    if (*slot < 0) {                        /* claim a counter; safe between processes sharing the file */
        u64 key = 14695981039346656037ull, none;
        for (const char *c = fn; *c; c++) key = (key ^ (u64)*c) * 1099511628211ull;
        for (int i = 0; i < 96 && *slot < 0; i++) {
            none = 0;
            if (atomic_compare_exchange_strong(&C->fn[i].key, &none, key)) snprintf(C->fn[i].name, sizeof C->fn[i].name, "%s", fn + 4);
            if (C->fn[i].key == key) *slot = i;
        }
    }
    if (*slot >= 0) C->fn[*slot].calls++;
    if (S.latency_us) for (u64 end = mono() + S.latency_us * 1000ull; mono() < end;) ;
    if (!wants) return OK;
    int ok = 0;
    for (int i = 0; d && i < S.ngpu && !ok; i++) {
        ok = d == &S.gpu[i];
        for (int m = 0; m < MAXM && !ok; m++) ok = d == S.gpu[i].mig[m];
    }
    if (!ok) return INVAL;
    int g = PARENT(d)->index;
    if (C->gpu[g].error) return (int)C->gpu[g].error;
    for (int i = 0; i < S.nrule; i++) {
        rule_t *r = &S.rule[i];
        if ((r->gpu >= 0 && r->gpu != g) || (r->fn[0] != '*' && strcmp(r->fn, fn))) continue;
        double t = now_ms();
        if (t >= r->from && t < r->to && r->seen++ >= r->after) return r->code;
    }
    return OK;
}
#define CHECK(d, w) do { static int slot_ = -1; int e_ = enter(__func__, &slot_, d, w); if (e_) return e_; } while (0)
#define DEV(d) CHECK(d, 1)
#define NODEV CHECK(NULL, 0)
#define HIDDEN(d) do { if (S.unpriv && (d)->migmode && !(d)->parent) return NOPERM; } while (0)
#define STR(src, out, len) do { if (!(out)) return INVAL; if (strlen(src) >= (len)) return TOOSMALL; strcpy(out, src); return OK; } while (0)
#define U32(fn, value) int fn(gdev *d, u32 *v) { DEV(d); *v = (value); return OK; }
#define NONE(fn) int fn(gdev *d, void *v) { DEV(d); (void)v; return NOTSUP; }
/* ---- library ---- */
int nvmlInitWithFlags(u32 flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    if (!S.refs) load();
    int e = C->init_error ? (int)C->init_error : (int)S.init_error;
    if (!e) { S.refs++; C->inits++; }
    pthread_mutex_unlock(&lock);
    return e;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); } int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    int e = S.refs ? OK : UNINIT;
    if (!e) { S.refs--; C->shutdowns++; }
    pthread_mutex_unlock(&lock);
    return e;
}
const char *nvmlErrorString(int r) {
    static const char *m[] = {"Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
        "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "GPU access blocked by the operating system", "Driver/library version mismatch", "In use by another client", "Insufficient Memory", "No data"};
    return r >= 0 && r < (int)(sizeof m / sizeof *m) ? m[r] : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char *b, u32 n) { NODEV; STR(S.driver, b, n); } int nvmlSystemGetNVMLVersion(char *b, u32 n) { NODEV; STR(S.nvml, b, n); }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { NODEV; *v = S.cuda; return OK; }
int nvmlSystemGetCudaDriverVersion(int *v) { return nvmlSystemGetCudaDriverVersion_v2(v); }
int nvmlSystemGetProcessName(u32 pid, char *b, u32 n) {
    NODEV; char p[64], l[512]; snprintf(p, sizeof p, "/proc/%u/exe", pid);
    ssize_t k = readlink(p, l, sizeof l - 1); if (k < 0) return NOTFOUND;
    l[k] = 0; STR(l, b, n);
}
/* ---- handles and identity ---- */
int nvmlDeviceGetCount_v2(u32 *n) { NODEV; *n = S.ngpu; return OK; }
int nvmlDeviceGetHandleByIndex_v2(u32 i, gdev **d) {
    if (S.refs && i >= (u32)S.ngpu) return INVAL;
    DEV(&S.gpu[i]); *d = &S.gpu[i]; return OK;
}
int nvmlDeviceGetHandleByUUID(const char *u, gdev **d) {
    NODEV; if (!u) return INVAL;
    for (int i = 0; i < S.ngpu; i++) {
        if (!strcmp(u, S.gpu[i].uuid)) { DEV(&S.gpu[i]); *d = &S.gpu[i]; return OK; }
        for (int m = 0; m < MAXM; m++) if (S.gpu[i].mig[m] && !strcmp(u, S.gpu[i].mig[m]->uuid)) { *d = S.gpu[i].mig[m]; return OK; }
    }
    return NOTFOUND;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *b, gdev **d) {
    NODEV; u32 x[4], y[4]; if (!b || sscanf(b, "%x:%x:%x.%x", x, x + 1, x + 2, x + 3) != 4) return INVAL;
    for (int i = 0; i < S.ngpu; i++)
        if (sscanf(S.gpu[i].bus, "%x:%x:%x.%x", y, y + 1, y + 2, y + 3) == 4 && !memcmp(x, y, sizeof x)) { DEV(&S.gpu[i]); *d = &S.gpu[i]; return OK; }
    return NOTFOUND;
}
U32(nvmlDeviceGetIndex, d->index) U32(nvmlDeviceGetMinorNumber, PARENT(d)->index)
int nvmlDeviceGetName(gdev *d, char *b, u32 n) { DEV(d); STR(d->name, b, n); }
int nvmlDeviceGetUUID(gdev *d, char *b, u32 n) { DEV(d); STR(d->uuid, b, n); }
typedef struct { char legacy[16]; u32 domain, bus, device, id, sub; char full[32]; } pci_t;
int nvmlDeviceGetPciInfo_v3(gdev *d, pci_t *p) {
    DEV(d); memset(p, 0, sizeof *p);
    u32 fn; if (sscanf(PARENT(d)->bus, "%x:%x:%x.%x", &p->domain, &p->bus, &p->device, &fn) != 4) return 999;
    snprintf(p->legacy, 16, "%04X:%02X:%02X.%X", p->domain & 0xffff, p->bus & 0xff, p->device & 0xff, fn & 7);
    strcpy(p->full, PARENT(d)->bus); p->id = 0x233010de; return OK;
}
/* ---- memory and processes ---- */
typedef struct { u64 total, free, used; } mem1_t; typedef struct { u32 version; u64 total, reserved, free, used; } mem2_t;
int nvmlDeviceGetMemoryInfo(gdev *d, mem1_t *m) {
    DEV(d); if (!m) return INVAL; HIDDEN(d);
    m->total = d->total; m->used = used(d, now_ms()) + d->reserved; m->free = d->total - m->used;
    if (unknown(d)) m->used = m->free = NA;
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(gdev *d, mem2_t *m) {
    DEV(d); if (!m) return INVAL;
    if (m->version != (sizeof *m | 2u << 24)) return BADVER;
    HIDDEN(d);
    m->total = d->total; m->reserved = d->reserved; m->used = used(d, now_ms()); m->free = d->total - d->reserved - m->used;
    if (unknown(d)) m->used = m->free = NA;
    return OK;
}
int nvmlDeviceGetBAR1MemoryInfo(gdev *d, mem1_t *m) { DEV(d); m->total = 131072ull << 20; m->used = 1 << 20; m->free = m->total - m->used; return OK; }
typedef struct { u32 pid; u64 used; } pinfo1_t; typedef struct { u32 pid; u64 used; u32 gi, ci; } pinfo2_t;
typedef struct { u32 pid; u64 used; u32 gi, ci; u64 cc; } pinfo3_t;    /* what early 530/535 drivers filled in */
static int procs(gdev *d, u32 *n, void *out, int layout, char type) {
    if (!n) return INVAL;
    HIDDEN(d); double t = now_ms(); u32 cap = *n, k = 0; int rc = OK;
    for (int s = -1; s < MAXM; s++) {
        gdev *x = s < 0 ? d : d->mig[s];
        for (int i = 0; x && i < x->nproc; i++) {
            proc_t *p = &x->proc[i];
            u64 v = alive(p, t);
            if (v == GONE || p->type != type) continue;
            if (k < cap && out && layout == 1) ((pinfo1_t *)out)[k] = (pinfo1_t){p->pid, v};
            else if (k < cap && out && layout == 3 && S.legacy_v3) ((pinfo3_t *)out)[k] = (pinfo3_t){p->pid, v, p->gi, p->ci, 0};
            else if (k < cap && out) ((pinfo2_t *)out)[k] = (pinfo2_t){p->pid, v, p->gi, p->ci};
            else rc = TOOSMALL;
            k++;
        }
    }
    *n = k; return rc;
}
#define PROCS(fn, layout, type) int fn(gdev *d, u32 *n, void *out) { DEV(d); return procs(d, n, out, layout, type); }
PROCS(nvmlDeviceGetComputeRunningProcesses, 1, 'C') PROCS(nvmlDeviceGetGraphicsRunningProcesses, 1, 'G')
PROCS(nvmlDeviceGetComputeRunningProcesses_v2, 2, 'C') PROCS(nvmlDeviceGetGraphicsRunningProcesses_v2, 2, 'G')
PROCS(nvmlDeviceGetComputeRunningProcesses_v3, 3, 'C') PROCS(nvmlDeviceGetGraphicsRunningProcesses_v3, 3, 'G')
PROCS(nvmlDeviceGetMPSComputeRunningProcesses_v3, 3, 'M')
/* ---- load, power, clocks, links ---- */
typedef struct { u32 gpu, mem; } util_t;
#define TWO(fn, T, a0, b0) int fn(gdev *d, T *a, T *b) { DEV(d); *a = (a0); *b = (b0); return OK; }
int nvmlDeviceGetUtilizationRates(gdev *d, util_t *u) { DEV(d); if (d->migmode) return NOTSUP; u->gpu = d->util; u->mem = d->util / 2; return OK; }
TWO(nvmlDeviceGetCudaComputeCapability, int, 9, 0) TWO(nvmlDeviceGetEncoderUtilization, u32, 0, 167000) TWO(nvmlDeviceGetDecoderUtilization, u32, 0, 167000)
int nvmlDeviceGetPowerUsage(gdev *d, u32 *v) { DEV(d); if (d->parent) return NOTSUP; *v = d->power_mw; return OK; }
U32(nvmlDeviceGetEnforcedPowerLimit, 700000) U32(nvmlDeviceGetPowerManagementLimit, 700000) U32(nvmlDeviceGetCurrPcieLinkGeneration, 5)
int nvmlDeviceGetTotalEnergyConsumption(gdev *d, u64 *v) { DEV(d); *v = (u64)(d->power_mw * now_ms() / 1000.0); return OK; }
int nvmlDeviceGetTemperature(gdev *d, int s, u32 *v) { DEV(d); (void)s; *v = 30 + d->power_mw / 20000; return OK; }
#define CLOCK(fn) int fn(gdev *d, u32 t, u32 *v) { DEV(d); if (t > 3) return INVAL; *v = (u32[]){1980, 1980, 2619, 1545}[t]; return OK; }
CLOCK(nvmlDeviceGetClockInfo) CLOCK(nvmlDeviceGetMaxClockInfo)
U32(nvmlDeviceGetCurrPcieLinkWidth, 16) U32(nvmlDeviceGetPerformanceState, 0) U32(nvmlDeviceGetPersistenceMode, 1) U32(nvmlDeviceGetComputeMode, 0) U32(nvmlDeviceGetDisplayActive, 0) U32(nvmlDeviceGetDisplayMode, 0)
NONE(nvmlDeviceGetDriverModel) NONE(nvmlDeviceGetDriverModel_v2) NONE(nvmlDeviceGetFanSpeed)   /* Linux; passively cooled */
int nvmlDeviceGetTotalEccErrors(gdev *d, u32 a, u32 b, u64 *v) { DEV(d); *v = 0 & a & b; return OK; }
int nvmlDeviceGetPcieThroughput(gdev *d, u32 c, u32 *v) { DEV(d); *v = c ? 1000 : 2000; return OK; }     /* KB/s */
#define LINK(fn, x) int fn(gdev *d, u32 l, u32 *v) { DEV(d); if (l >= (u32)d->link) return INVAL; *v = (x); return OK; }
LINK(nvmlDeviceGetNvLinkState, 1) LINK(nvmlDeviceGetNvLinkRemoteDeviceType, d->sw ? 2 : 0)
int nvmlDeviceGetNvLinkRemotePciInfo_v2(gdev *d, u32 l, pci_t *p) {
    DEV(d); if (l >= (u32)d->link || !p) return INVAL;
    memset(p, 0, sizeof *p);
    int peer = S.ngpu > 1 ? (d->index + 1 + (int)l % (S.ngpu - 1)) % S.ngpu : d->index;
    snprintf(p->full, sizeof p->full, "%s", d->sw ? "00000000:A0:00.0" : S.gpu[peer].bus);
    return OK;
}
typedef struct { u32 id, scope; long long ts, lat; int type, ret; union { double d; u32 u; u64 ull; } v; } field_t;
int nvmlDeviceGetFieldValues(gdev *d, int n, field_t *f) {
    DEV(d); if (n < 1 || !f) return INVAL;
    for (int i = 0; i < n; i++) {
        f[i].ts = (long long)(now_ms() * 1000); f[i].lat = 0; f[i].type = 3; f[i].ret = OK; f[i].v.ull = 0;
        if (f[i].id == 83) f[i].v.ull = (u64)(d->power_mw * now_ms() / 1000.0);
        else if (f[i].id >= 138 && f[i].id <= 141 && (f[i].scope < (u32)d->link || f[i].scope == ~0u)) f[i].v.ull = (u64)(now_ms() * 10);  /* KiB */
        else if (f[i].id == 197 || f[i].id == 198) f[i].v.ull = (u64)(now_ms() * 1000);
        else f[i].ret = NOTSUP;
    }
    return OK;
}
int nvmlDeviceGetTopologyCommonAncestor(gdev *a, gdev *b, u32 *v) { DEV(a); *v = a == b ? 0 : a->numa == b->numa ? 40 : 50; return OK; }
int nvmlDeviceGetP2PStatus(gdev *a, gdev *b, u32 i, u32 *v) { DEV(a); (void)b; (void)i; *v = 0; return OK; }
typedef struct { u32 pid; u64 ts; u32 sm, mem, enc, dec; } psample_t;
int nvmlDeviceGetProcessUtilization(gdev *d, psample_t *s, u32 *n, u64 since) {
    DEV(d); (void)since; u32 cap = *n; *n = d->nproc;
    if (!d->nproc) return NOTFOUND;
    if (!s || cap < (u32)d->nproc) return TOOSMALL;
    for (int i = 0; i < d->nproc; i++) s[i] = (psample_t){d->proc[i].pid, (u64)time(NULL) * 1000000, d->util / d->nproc, d->util / 2 / d->nproc, 0, 0};
    return OK;
}
/* ---- MIG ---- */
int nvmlDeviceGetMigMode(gdev *d, u32 *c, u32 *p) { DEV(d); if (d->parent) return INVAL; *c = *p = d->migmode; return OK; }
U32(nvmlDeviceGetMaxMigDeviceCount, d->parent ? 0 : MAXM) U32(nvmlDeviceIsMigDeviceHandle, d->parent != NULL)
int nvmlDeviceGetMigDeviceHandleByIndex(gdev *d, u32 i, gdev **o) { DEV(d); if (d->parent || i >= MAXM) return INVAL; if (!d->mig[i]) return NOTFOUND; *o = d->mig[i]; return OK; }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gdev *d, gdev **o) { DEV(d); if (!d->parent) return INVAL; *o = d->parent; return OK; }
#define MIGID(fn, x) int fn(gdev *d, u32 *v) { DEV(d); if (!d->parent) return INVAL; *v = d->x; return OK; }
MIGID(nvmlDeviceGetGpuInstanceId, gi) MIGID(nvmlDeviceGetComputeInstanceId, ci)
/* ---- events ---- */
typedef struct { gdev *device; u64 type, data; u32 gi, ci; } event_t;
int nvmlEventSetCreate(void **s) { NODEV; *s = calloc(1, 16); return OK; } int nvmlEventSetFree(void *s) { NODEV; free(s); return OK; }
int nvmlDeviceGetSupportedEventTypes(gdev *d, u64 *v) { DEV(d); *v = 0xf; return OK; }
int nvmlDeviceRegisterEvents(gdev *d, u64 t, void *s) { DEV(d); *(u64 *)s |= 1ull << d->index; (void)t; return OK; }
int nvmlEventSetWait_v2(void *s, event_t *e, u32 ms) {
    NODEV;
    for (u64 end = mono() + ms * 1000000ull;; usleep(500)) {
        for (int i = 0; i < S.nxid; i++)
            if ((*(u64 *)s >> S.xid[i].gpu & 1) && now_ms() >= S.xid[i].t && !atomic_exchange(&S.xid[i].done, 1)) {
                *e = (event_t){&S.gpu[S.xid[i].gpu], 8, S.xid[i].code, ~0u, ~0u}; return OK;
            }
        if (mono() >= end) return TIMEOUT;
    }
}
