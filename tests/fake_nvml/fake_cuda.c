/* Stand-in libcuda.so.1: lists the devices of "cuda k 0 uuid GPU-..." in that order, as CUDA would under the variables
 * that the process has (the test writes what CUDA would see). */
#include "said.h"

API int cuInit(unsigned flags) { START; (void)flags; return OK; }
API int cuDeviceGetCount(int *out) { START; *out = number("system", 0, 0, "cuda_count", 0); return OK; }
API int cuDeviceGet(int *out, int i) { START; *out = i; return OK; }
API int cuDeviceGetUuid_v2(unsigned char *out, int device) {
    START;
    char text[96], digits[33];
    int n = 0;
    if (!said("cuda", device, 0, "uuid", text, sizeof text)) return INVALID;
    for (char *c = text + 4; *c && n < 32; c++)
        if (*c != '-') digits[n++] = *c;
    for (int i = 0; i < 16; i++) {
        char two[3] = {digits[2 * i], digits[2 * i + 1], 0};
        out[i] = strtoul(two, NULL, 16);
    }
    return OK;
}
