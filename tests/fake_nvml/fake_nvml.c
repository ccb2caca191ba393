/* Stand-in libnvidia-ml.so.1. Written from the signatures that nvidia-ml-py calls; no NVIDIA header is needed.
 * With -DOLD it lacks what drivers before 2020 lacked. */
#include "said.h"

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { uint32_t id, scope; int64_t at, latency; uint32_t type, code; union { uint32_t u; uint64_t x; } v; } Field;
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } Process;
typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } Event;

/* Handles: GPU i is i + 1, its MIG instance m is 4096 + 64 i + m. */
static int gpu(void *h) { return (uintptr_t)h >= 4096 ? -1 : (int)(uintptr_t)h - 1; }
static int mig_gpu(void *h) { return ((int)(uintptr_t)h - 4096) / 64; }
static int mig_no(void *h) { return ((int)(uintptr_t)h - 4096) % 64; }

static int text(void *h, const char *key, char *out, unsigned size) {
    int found = gpu(h) < 0 ? said("mig", mig_gpu(h), mig_no(h), key, out, size) : said("gpu", gpu(h), 0, key, out, size);
    if (gpu(h) >= 0 && number("gpu", gpu(h), 0, "lost", 0)) return LOST;
    return found ? OK : UNSUPPORTED;
}
static int value(void *h, const char *key, long long *out) {
    char buffer[64];
    int code = text(h, key, buffer, sizeof buffer);
    if (!code) *out = strtoll(buffer, NULL, 0);
    return code;
}
#define GIVE(key, out) do { long long v_; int c_ = value(h, key, &v_); if (c_) return c_; *(out) = v_; return OK; } while (0)
#define NUMBER(function, key) API int function(void *h, unsigned *out) { START; GIVE(key, out); }
#define SYSTEM(function, key) \
    API int function(char *out, unsigned size) { START; return said("system", 0, 0, key, out, size) ? OK : UNSUPPORTED; }

static int init(void) { return getenv("FAKE_NVML") && !access(getenv("FAKE_NVML"), R_OK) ? OK : NO_DRIVER; }
#ifndef OLD
API int nvmlInitWithFlags(unsigned flags) { START; (void)flags; return init(); }
API int nvmlInit_v2(void) { START; return init(); }
#endif
API int nvmlInit(void) { START; return init(); }
API int nvmlShutdown(void) { START; return OK; }
API const char *nvmlErrorString(int code) {
    switch (code) {
    case UNSUPPORTED: return "Not Supported";
    case NO_DRIVER: return "Driver Not Loaded";
    case LOST: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}
SYSTEM(nvmlSystemGetDriverVersion, "driver")
SYSTEM(nvmlSystemGetNVMLVersion, "nvml")
static int cuda(int *out) { return (*out = number("system", 0, 0, "cuda", 0)) ? OK : UNSUPPORTED; }
#ifndef OLD
API int nvmlSystemGetCudaDriverVersion_v2(int *out) { START; return cuda(out); }
#endif
API int nvmlSystemGetCudaDriverVersion(int *out) { START; return cuda(out); }

static int count(unsigned *out) { *out = number("system", 0, 0, "count", 0); return OK; }
static int by_index(unsigned i, void **out) {
    *out = (void *)(uintptr_t)(i + 1);
    return number("gpu", i, 0, "closed", 0) ? LOST : OK;
}
#ifndef OLD
API int nvmlDeviceGetCount_v2(unsigned *out) { START; return count(out); }
API int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **out) { START; return by_index(i, out); }
#endif
API int nvmlDeviceGetCount(unsigned *out) { START; return count(out); }
API int nvmlDeviceGetHandleByIndex(unsigned i, void **out) { START; return by_index(i, out); }

API int nvmlDeviceGetUUID(void *h, char *out, unsigned size) { START; return text(h, "uuid", out, size); }
API int nvmlDeviceGetName(void *h, char *out, unsigned size) { START; return text(h, "name", out, size); }
NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetGpuInstanceId, "gpu_instance")
NUMBER(nvmlDeviceGetComputeInstanceId, "compute_instance")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, "most_instances")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "retirement_pending")
API int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *out) {
    START;
    long long total, used;
    int code = value(h, "memory_mib", &total);
    if (code) return code;
    if (value(h, "used_mib", &used)) used = 0;
    out[0] = total << 20, out[1] = (total - used) << 20, out[2] = used << 20;
    return OK;
}
static int pci_info(const char *bus, Pci *out, int old) {
    unsigned a = 0, b = 0, c = 0;
    sscanf(bus, "%x:%x:%x", &a, &b, &c);
    memset(out->legacy, 0, sizeof out->legacy);
    out->domain = a, out->bus = b, out->device = c;
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", a & 0xffff, b, c);
    if (!old) snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", a, b, c);
    return OK;
}
static int own_pci(void *h, Pci *out, int old) {
    char bus[64];
    int code = text(h, "pci", bus, sizeof bus);
    return code ? code : pci_info(bus, out, old);
}
#ifndef OLD
API int nvmlDeviceGetPciInfo_v3(void *h, Pci *out) { START; return own_pci(h, out, 0); }
#endif
API int nvmlDeviceGetPciInfo_v2(void *h, Pci *out) { START; return own_pci(h, out, 1); }
API int nvmlDeviceGetPciInfo(void *h, Pci *out) { START; return own_pci(h, out, 1); }
API int nvmlDeviceGetCudaComputeCapability(void *h, int *major, int *minor) {
    START;
    long long v;
    int code = value(h, "capability", &v); /* 86 = 8.6 */
    if (!code) *major = v / 10, *minor = v % 10;
    return code;
}
API int nvmlDeviceGetMemoryAffinity(void *h, unsigned size, unsigned long *out, unsigned scope) {
    START;
    long long node;
    int code = value(h, "numa_node", &node);
    (void)scope;
    if (!code) memset(out, 0, size * sizeof *out), out[node / 64] = 1ul << node % 64;
    return code;
}
API int nvmlDeviceGetUtilizationRates(void *h, unsigned *out) {
    START;
    out[1] = 0;
    GIVE("utilization", out);
}
API int nvmlDeviceGetTemperature(void *h, unsigned sensor, unsigned *out) { START; (void)sensor; GIVE("temperature", out); }
API int nvmlDeviceGetTemperatureThreshold(void *h, int which, unsigned *out) { START; (void)which; GIVE("slowdown", out); }
#ifndef OLD
API int nvmlDeviceGetCurrentClocksEventReasons(void *h, unsigned long long *out) { START; GIVE("throttle", out); }
#endif
API int nvmlDeviceGetCurrentClocksThrottleReasons(void *h, unsigned long long *out) { START; GIVE("throttle", out); }
API int nvmlDeviceGetTotalEccErrors(void *h, int type, int counter, unsigned long long *out) {
    START;
    if (type != 1 || counter != 0) return INVALID; /* uncorrected, volatile */
    GIVE("ecc", out);
}
API int nvmlDeviceGetRemappedRows(void *h, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    START;
    long long v;
    int code = value(h, "remap", &v); /* 1 = pending, 2 = failed, 3 = both */
    if (!code) *corrected = *uncorrected = 0, *pending = v & 1, *failed = v >> 1 & 1;
    return code;
}
static int processes(void *h, unsigned *n, Process *out) { /* "process GPU k pid P" and "process GPU k memory_mib M" */
    unsigned found = 0;
    long long here;
    int code = value(h, "processes", &here);
    if (code) return code;
    for (unsigned k = 0; k < here; k++, found++)
        if (out && found < *n) {
            out[found] = (Process){.pid = number("process", gpu(h), k, "pid", 0), .gi = -1, .ci = -1};
            out[found].memory = (unsigned long long)number("process", gpu(h), k, "memory_mib", 0) << 20;
        }
    code = found > (out ? *n : 0) ? TOO_SMALL : OK;
    *n = found;
    return code;
}
#ifndef OLD
API int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, Process *out) { START; return processes(h, n, out); }
#endif
API int nvmlDeviceGetComputeRunningProcesses_v2(void *h, unsigned *n, Process *out) { START; return processes(h, n, out); }

#ifndef OLD
API int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *then) { START; *then = 0; GIVE("mig", now); }
API int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned m, void **out) {
    START;
    char uuid[96];
    if (!said("mig", gpu(h), m, "uuid", uuid, sizeof uuid)) return NOT_FOUND;
    *out = (void *)(uintptr_t)(4096 + 64 * gpu(h) + m);
    return OK;
}
#endif

static int link_value(void *h, unsigned l, const char *key, unsigned *out) {
    long long v = number("link", gpu(h), l, key, -1);
    if (number("gpu", gpu(h), 0, "lost", 0)) return LOST;
    if (number("link", gpu(h), l, "up", -1) < 0) return l < 18 ? UNSUPPORTED : INVALID;
    if (v < 0) return UNSUPPORTED;
    *out = v;
    return OK;
}
API int nvmlDeviceGetNvLinkState(void *h, unsigned l, unsigned *out) { START; return link_value(h, l, "up", out); }
API int nvmlDeviceGetNvLinkVersion(void *h, unsigned l, unsigned *out) { START; return link_value(h, l, "version", out); }
API int nvmlDeviceGetNvLinkCapability(void *h, unsigned l, int which, unsigned *out) {
    START;
    int code = link_value(h, l, "up", out);
    if (!code) *out = which == 0;
    return code;
}
#ifndef OLD
API int nvmlDeviceGetNvLinkRemoteDeviceType(void *h, unsigned l, unsigned *out) {
    START;
    return link_value(h, l, "remote_type", out);
}
#endif
static int remote_pci(void *h, unsigned l, Pci *out, int old) {
    char bus[64];
    unsigned up;
    int code = link_value(h, l, "up", &up);
    if (code) return code;
    return said("link", gpu(h), l, "remote", bus, sizeof bus) ? pci_info(bus, out, old) : UNSUPPORTED;
}
#ifndef OLD
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned l, Pci *out) { START; return remote_pci(h, l, out, 0); }
#endif
API int nvmlDeviceGetNvLinkRemotePciInfo(void *h, unsigned l, Pci *out) { START; return remote_pci(h, l, out, 1); }
API int nvmlDeviceGetFieldValues(void *h, int n, Field *out) { /* 164 = speed of link `scope`, 90 = of all links */
    START;
    for (int i = 0; i < n; i++) {
        unsigned v = 0;
        out[i].code = out[i].id == 164 ? link_value(h, out[i].scope, "speed", &v) : UNSUPPORTED;
        if (out[i].id == 90 && (v = number("gpu", gpu(h), 0, "link_speed", 0))) out[i].code = OK;
        out[i].type = 1, out[i].v.x = v;
    }
    return OK;
}
#ifndef OLD
API int nvmlDeviceGetGpuFabricInfoV(void *h, char *out) { /* version 4, uuid 16, status 4, clique 4, state 4, health 4 */
    START;
    GIVE("fabric", (unsigned *)(out + 28));
}
#endif
API int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, int *out) {
    START;
    int a = gpu(one), b = gpu(other);
    *out = number("pair", a < b ? a : b, a < b ? b : a, "ancestor", -1);
    return *out < 0 ? UNSUPPORTED : OK;
}
API int nvmlDeviceGetP2PStatus(void *one, void *other, int which, int *out) {
    START;
    int a = gpu(one), b = gpu(other);
    *out = number("pair", a < b ? a : b, a < b ? b : a, which == 2 ? "p2p_nvlink" : "p2p_read", -1);
    return *out < 0 ? UNSUPPORTED : OK;
}

API int nvmlEventSetCreate(void **out) { START; *out = (void *)1; return OK; }
API int nvmlDeviceRegisterEvents(void *h, unsigned long long types, void *set) { START; (void)h, (void)types, (void)set; return OK; }
API int nvmlEventSetWait_v2(void *set, Event *out, unsigned milliseconds) { /* "event k 0 gpu I", "event k 0 xid X", once each */
    START;
    static int next;
    (void)set;
    long long at = number("event", next, 0, "gpu", -1);
    if (at < 0) {
        usleep(milliseconds * 1000);
        return TIMEOUT;
    }
    *out = (Event){.device = (void *)(uintptr_t)(at + 1), .type = 8, .data = number("event", next, 0, "xid", 0)};
    next++;
    return OK;
}
API int nvmlEventSetFree(void *set) { START; (void)set; return OK; }
