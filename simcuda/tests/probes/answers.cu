// Asks the driver for one of its answers and prints it: `answers list`, `answers NAME`. Each case runs in a process of its own, because a
// wrong call may spoil the context or crash the driver. A peer process, where a case needs one, is forked before cuInit.
#include <cuda.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

static const size_t M = 2 << 20;
static CUcontext context;
static int peer_socket = -1;
static pid_t peer_pid;

static void need(CUresult r, const char *what) {
  if (r) { printf("SETUP %s failed with %d\n", what, r); exit(3); }
}
#define NEED(call) need((call), #call)

static void start(bool with_context = true) {
  CUdevice d;
  NEED(cuInit(0));
  NEED(cuDeviceGet(&d, 0));
  if (with_context) { NEED(cuDevicePrimaryCtxRetain(&context, d)); NEED(cuCtxSetCurrent(context)); }
}

// Forks a peer that runs `role` with its end of a socket pair and then lives until this process closes its own end.
static void peer(const std::function<void(int)> &role) {
  int pair[2];
  socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair);
  if ((peer_pid = fork()) == 0) {
    close(pair[0]);
    start();
    role(pair[1]);
    char end;
    while (recv(pair[1], &end, 1, 0) > 0) {}
    exit(0);
  }
  close(pair[1]);
  peer_socket = pair[0];
}
template <class T> static void give(int s, const T &v, int fd = -1) {
  msghdr m{}; iovec v1{(void *)&v, sizeof v}; char c[CMSG_SPACE(sizeof(int))] = {0};
  m.msg_iov = &v1; m.msg_iovlen = 1;
  if (fd >= 0) {
    m.msg_control = c; m.msg_controllen = sizeof c;
    cmsghdr *h = CMSG_FIRSTHDR(&m); h->cmsg_level = SOL_SOCKET; h->cmsg_type = SCM_RIGHTS; h->cmsg_len = CMSG_LEN(sizeof(int)); memcpy(CMSG_DATA(h), &fd, sizeof fd);
  }
  if (sendmsg(s, &m, 0) < 0) { perror("sendmsg"); exit(3); }
}
template <class T> static T take(int *fd = nullptr) {
  T v; msghdr m{}; iovec v1{&v, sizeof v}; char c[CMSG_SPACE(sizeof(int))]; m.msg_iov = &v1; m.msg_iovlen = 1; m.msg_control = c; m.msg_controllen = sizeof c;
  if (recvmsg(peer_socket, &m, 0) != sizeof v) { printf("SETUP peer failed\n"); exit(3); }
  cmsghdr *h = CMSG_FIRSTHDR(&m);
  if (fd && h) memcpy(fd, CMSG_DATA(h), sizeof *fd);
  return v;
}
static void kill_peer() { kill(peer_pid, SIGKILL); waitpid(peer_pid, 0, 0); }

static CUdeviceptr alloc(size_t n) { CUdeviceptr p; NEED(cuMemAlloc(&p, n)); return p; }
static CUmemAllocationProp prop(bool exportable = true) {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED; p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  if (exportable) p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return p;
}
static CUmemGenericAllocationHandle make(size_t n, bool exportable = true) { auto p = prop(exportable); CUmemGenericAllocationHandle h; NEED(cuMemCreate(&h, n, &p, 0)); return h; }
static CUdeviceptr reserve(size_t n) { CUdeviceptr p; NEED(cuMemAddressReserve(&p, n, 0, 0, 0)); return p; }
static CUdeviceptr mapped(size_t n) { CUdeviceptr p = reserve(n); NEED(cuMemMap(p, n, 0, make(n), 0)); return p; }
static CUresult access(CUdeviceptr p, size_t n, unsigned flags) {
  CUmemAccessDesc d{}; d.location.type = CU_MEM_LOCATION_TYPE_DEVICE; d.flags = (CUmemAccess_flags)flags;
  return cuMemSetAccess(p, n, &d, 1);
}
static int exported(CUmemGenericAllocationHandle h) { int fd; NEED(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)); return fd; }
static CUresult import_fd(int fd) { CUmemGenericAllocationHandle h; return cuMemImportFromShareableHandle(&h, (void *)(long)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR); }
static CUmemoryPool pool(bool exportable = true) {
  CUmemPoolProps p{}; p.allocType = CU_MEM_ALLOCATION_TYPE_PINNED; p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  if (exportable) p.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemoryPool q; NEED(cuMemPoolCreate(&q, &p)); return q;
}
static CUresult import_pool(CUmemoryPool *q, int fd) { return cuMemPoolImportFromShareableHandle(q, (void *)(long)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0); }
static CUipcMemHandle handle_of(CUdeviceptr p) { CUipcMemHandle h; NEED(cuIpcGetMemHandle(&h, p)); return h; }
static CUresult open_handle(const CUipcMemHandle &h, CUdeviceptr *p = nullptr, unsigned flags = 1) { CUdeviceptr q; return cuIpcOpenMemHandle(p ? p : &q, h, flags); }
static CUipcMemHandle edited(CUipcMemHandle h, int at, int by) { int v; memcpy(&v, h.reserved + at, 4); v += by; memcpy(h.reserved + at, &v, 4); return h; }
static CUevent event(unsigned flags) { CUevent e; NEED(cuEventCreate(&e, flags)); return e; }
static CUipcEventHandle event_handle(CUevent e) { CUipcEventHandle h; NEED(cuIpcGetEventHandle(&h, e)); return h; }
static void legacy_peer() { peer([](int s) { CUdeviceptr p = alloc(4 * M); NEED(cuMemsetD32(p, 0x5EED, M)); NEED(cuCtxSynchronize()); give(s, handle_of(p)); }); }
static CUresult in_forked_child(const std::function<CUresult()> &call) {
  pid_t k = fork(); int st;
  if (k == 0) { CUresult r = call(); _exit(r > 200 ? 200 : r); }
  waitpid(k, &st, 0); return (CUresult)(WIFEXITED(st) ? WEXITSTATUS(st) : 255);
}
static CUresult sync_after(CUresult r) { return r ? r : cuCtxSynchronize(); }

struct Case { const char *name; std::function<int()> ask; };
static const std::vector<Case> cases = {
    {"FORKED_CHILD/init", [] { start(); return in_forked_child([] { return cuInit(0); }); }},
    {"FORKED_CHILD/alloc", [] { start(); return in_forked_child([] { CUdeviceptr p; return cuMemAlloc(&p, M); }); }},
    {"NO_CONTEXT", [] { start(false); CUdeviceptr p; return cuMemAlloc(&p, M); }},
    {"DESTROYED_CONTEXT", [] { start(); NEED(cuDevicePrimaryCtxRelease(0)); CUdeviceptr p; return cuMemAlloc(&p, M); }},
    {"ALLOC_ZERO", [] { start(); CUdeviceptr p; return cuMemAlloc(&p, 0); }},
    {"freeing-null-is-an-error", [] { start(); return cuMemFree(0); }},
    {"FREE_UNKNOWN/inside", [] { start(); return cuMemFree(alloc(4 * M) + 4096); }},
    {"FREE_UNKNOWN/twice", [] { start(); CUdeviceptr p = alloc(4 * M); NEED(cuMemFree(p)); return cuMemFree(p); }},
    {"FREE_UNKNOWN/mapping", [] { start(); CUdeviceptr p = mapped(M); return cuMemFree(p); }},
    {"FREE_UNKNOWN/import", [] { legacy_peer(); start(); CUdeviceptr p; NEED(open_handle(take<CUipcMemHandle>(), &p)); return cuMemFree(p); }},
    {"COPY_OUT_OF_RANGE/memset", [] { start(); CUdeviceptr p = alloc(M); return sync_after(cuMemsetD8(p, 1, 64 * M)); }},
    {"COPY_OUT_OF_RANGE/dtoh", [] { start(); CUdeviceptr p = alloc(M); std::vector<char> b(64 * M); return cuMemcpyDtoH(b.data(), p, 64 * M); }},
    {"ACCESS_NOT_SET/memset", [] { start(); return sync_after(cuMemsetD8(mapped(M), 1, M)); }},
    {"ACCESS_NOT_SET/dtoh", [] { start(); int x; return cuMemcpyDtoH(&x, mapped(M), 4); }},
    {"ACCESS_READ_ONLY", [] { start(); CUdeviceptr p = mapped(M); NEED(access(p, M, 1)); return sync_after(cuMemsetD32(p, 1, 16)); }},
    {"ADDRESS_RANGE_UNKNOWN", [] { start(); CUdeviceptr b; size_t n; return cuMemGetAddressRange(&b, &n, 4096); }},
    {"POINTER_UNKNOWN", [] { start(); int x = 0; return cuPointerGetAttribute(&x, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)&x); }},
    {"IPC_GET_NOT_LEGACY/vmm", [] { start(); CUdeviceptr p = mapped(M); NEED(access(p, M, 3)); CUipcMemHandle h; return cuIpcGetMemHandle(&h, p); }},
    {"IPC_GET_NOT_LEGACY/pool", [] { start(); CUdeviceptr p; NEED(cuMemAllocFromPoolAsync(&p, M, pool(), 0)); CUipcMemHandle h; return cuIpcGetMemHandle(&h, p); }},
    {"IPC_GET_IMPORTED", [] { legacy_peer(); start(); CUdeviceptr p; NEED(open_handle(take<CUipcMemHandle>(), &p)); CUipcMemHandle h; return cuIpcGetMemHandle(&h, p); }},
    {"IPC_OPEN_SAME_PID", [] { start(); return open_handle(handle_of(alloc(4 * M))); }},
    {"IPC_OPEN_EXPORTER_DEAD", [] { legacy_peer(); auto h = take<CUipcMemHandle>(); kill_peer(); start(); return open_handle(h); }},
    {"IPC_OPEN_EXPORTER_DEAD/mapped", [] {
       // A third process keeps the memory mapped while its maker dies.
       legacy_peer(); auto h = take<CUipcMemHandle>(); pid_t maker = peer_pid;
       peer([h](int s) { CUdeviceptr p; NEED(open_handle(h, &p)); give(s, 1); }); take<int>();
       kill(maker, SIGKILL); waitpid(maker, 0, 0); start(); return open_handle(h); }},
    {"IPC_OPEN_UNKNOWN/object", [] { legacy_peer(); auto h = take<CUipcMemHandle>(); start(); return open_handle(edited(h, 52, 1000)); }},
    {"IPC_OPEN_EXPORTER_DEAD/client", [] { legacy_peer(); auto h = take<CUipcMemHandle>(); start(); return open_handle(edited(h, 48, 5000)); }},
    {"another-counter-opens-nothing", [] { legacy_peer(); auto h = take<CUipcMemHandle>(); start(); return open_handle(edited(h, 40, 1000)); }},
    {"another-size-opens-nothing", [] { legacy_peer(); auto h = take<CUipcMemHandle>(); start(); return open_handle(edited(h, 16, 4096)); }},
    {"IPC_OPEN_FREED", [] {
       peer([](int s) { CUdeviceptr p = alloc(4 * M); auto h = handle_of(p); NEED(cuMemFree(p)); give(s, h); });
       auto h = take<CUipcMemHandle>(); start(); return open_handle(h); }},
    {"IPC_OPEN_FLAGS", [] { legacy_peer(); auto h = take<CUipcMemHandle>(); start(); return open_handle(h, nullptr, 2); }},
    {"IPC_CLOSE_UNKNOWN", [] { start(); return cuIpcCloseMemHandle(alloc(4 * M)); }},
    {"EVENT_INTERPROCESS_TIMING", [] { start(); CUevent e; return cuEventCreate(&e, CU_EVENT_INTERPROCESS); }},
    {"EVENT_GET_NOT_INTERPROCESS", [] { start(); CUipcEventHandle h; return cuIpcGetEventHandle(&h, event(CU_EVENT_DISABLE_TIMING)); }},
    {"EVENT_OPEN_SAME_PID", [] { start(); CUevent e; return cuIpcOpenEventHandle(&e, event_handle(event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS))); }},
    {"EVENT_OPEN_NO_FILE", [] {
       peer([](int s) { give(s, event_handle(event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS))); });
       auto h = take<CUipcEventHandle>(); int pid; memcpy(&pid, h.reserved, 4); pid += 100000; memcpy(h.reserved, &pid, 4);
       start(); CUevent e; return cuIpcOpenEventHandle(&e, h); }},
    {"VMM_CREATE_SIZE/zero", [] { start(); auto p = prop(); CUmemGenericAllocationHandle h; return cuMemCreate(&h, 0, &p, 0); }},
    {"VMM_CREATE_SIZE/odd", [] { start(); auto p = prop(); CUmemGenericAllocationHandle h; return cuMemCreate(&h, M + 4096, &p, 0); }},
    {"VMM_CREATE_PROPERTY/type", [] { start(); auto p = prop(); p.type = CU_MEM_ALLOCATION_TYPE_INVALID; CUmemGenericAllocationHandle h; return cuMemCreate(&h, M, &p, 0); }},
    {"VMM_CREATE_PROPERTY/location", [] { start(); auto p = prop(); p.location.type = CU_MEM_LOCATION_TYPE_INVALID; CUmemGenericAllocationHandle h; return cuMemCreate(&h, M, &p, 0); }},
    {"VMM_CREATE_PROPERTY/flags", [] { start(); auto p = prop(); CUmemGenericAllocationHandle h; return cuMemCreate(&h, M, &p, 1); }},
    {"VMM_CREATE_DEVICE", [] { start(); auto p = prop(); p.location.id = 99; CUmemGenericAllocationHandle h; return cuMemCreate(&h, M, &p, 0); }},
    {"VMM_HANDLE_TYPE/create", [] { start(); auto p = prop(); p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_WIN32; CUmemGenericAllocationHandle h; return cuMemCreate(&h, M, &p, 0); }},
    {"VMM_HANDLE_TYPE/export", [] { start(); void *w = nullptr; return cuMemExportToShareableHandle(&w, make(M), CU_MEM_HANDLE_TYPE_WIN32, 0); }},
    {"VMM_IMPORT_HANDLE_TYPE", [] { start(); CUmemGenericAllocationHandle h; return cuMemImportFromShareableHandle(&h, (void *)(long)exported(make(M)), CU_MEM_HANDLE_TYPE_WIN32); }},
    {"VMM_UNKNOWN_HANDLE/released", [] { start(); auto h = make(M); NEED(cuMemRelease(h)); return cuMemRelease(h); }},
    {"VMM_UNKNOWN_HANDLE/never", [] { start(); CUmemAllocationProp p{}; return cuMemGetAllocationPropertiesFromHandle(&p, 0x1234); }},
    {"VMM_EXPORT_NOT_EXPORTABLE", [] { start(); int fd; return cuMemExportToShareableHandle(&fd, make(M, false), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0); }},
    {"VMM_IMPORT_FOREIGN/memfd", [] { start(); int fd = memfd_create("x", 0); if (ftruncate(fd, 2 * M)) return -1; return (int)import_fd(fd); }},
    {"VMM_IMPORT_FOREIGN/pipe", [] { start(); int p[2]; if (pipe(p)) return -1; return (int)import_fd(p[0]); }},
    {"VMM_IMPORT_FOREIGN/socket", [] { start(); return import_fd(socket(AF_UNIX, SOCK_STREAM, 0)); }},
    {"VMM_IMPORT_FOREIGN/null-device", [] { start(); return import_fd(open("/dev/null", O_RDWR)); }},
    {"VMM_IMPORT_FOREIGN/closed", [] { start(); return import_fd(777); }},
    {"VMM_IMPORT_FOREIGN/minus-one", [] { start(); return import_fd(-1); }},
    {"VMM_IMPORT_OTHER_KIND", [] { start(); int fd; NEED(cuMemPoolExportToShareableHandle(&fd, pool(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)); return import_fd(fd); }},
    {"VMM_RESERVE_ARGUMENT/zero", [] { start(); CUdeviceptr p; return cuMemAddressReserve(&p, 0, 0, 0, 0); }},
    {"VMM_RESERVE_ARGUMENT/odd", [] { start(); CUdeviceptr p; return cuMemAddressReserve(&p, M + 4096, 0, 0, 0); }},
    {"VMM_RESERVE_ARGUMENT/align", [] { start(); CUdeviceptr p; return cuMemAddressReserve(&p, M, 3 * M, 0, 0); }},
    {"VMM_FREE_UNKNOWN/part", [] { start(); return cuMemAddressFree(reserve(4 * M), 2 * M); }},
    {"VMM_FREE_UNKNOWN/twice", [] { start(); CUdeviceptr p = reserve(M); NEED(cuMemAddressFree(p, M)); return cuMemAddressFree(p, M); }},
    {"VMM_FREE_MAPPED", [] { start(); return cuMemAddressFree(mapped(M), M); }},
    {"VMM_MAP_LARGER", [] { start(); return cuMemMap(reserve(4 * M), 4 * M, 0, make(2 * M), 0); }},
    {"VMM_MAP_SMALLER", [] { start(); return cuMemMap(reserve(4 * M), M, 0, make(2 * M), 0); }},
    {"VMM_MAP_OFFSET/rest", [] { start(); return cuMemMap(reserve(4 * M), M, M, make(2 * M), 0); }},
    {"VMM_MAP_OFFSET/beyond", [] { start(); return cuMemMap(reserve(4 * M), 2 * M, M, make(2 * M), 0); }},
    {"VMM_MAP_UNRESERVED/never", [] { start(); CUdeviceptr p = reserve(M); NEED(cuMemAddressFree(p, M)); return cuMemMap(p, M, 0, make(M), 0); }},
    {"VMM_MAP_UNRESERVED/beyond", [] { start(); return cuMemMap(reserve(M), 2 * M, 0, make(2 * M), 0); }},
    {"VMM_MAP_UNRESERVED/unaligned", [] { start(); return cuMemMap(reserve(4 * M) + 4096, M, 0, make(M), 0); }},
    {"VMM_MAP_OCCUPIED", [] { start(); CUdeviceptr p = mapped(M); return cuMemMap(p, M, 0, make(M), 0); }},
    {"VMM_UNMAP_RANGE/part", [] { start(); return cuMemUnmap(mapped(2 * M), M); }},
    {"unmapping-nothing-is-an-error", [] { start(); return cuMemUnmap(reserve(M), M); }},
    {"unmapping-more-than-is-mapped-is-an-error", [] { start(); CUdeviceptr p = reserve(2 * M); NEED(cuMemMap(p, M, 0, make(M), 0)); return cuMemUnmap(p, 2 * M); }},
    {"VMM_ACCESS_RANGE/part", [] { start(); return access(mapped(2 * M), M, 3); }},
    {"VMM_ACCESS_RANGE/nothing", [] { start(); return access(reserve(M), M, 3); }},
    {"VMM_ACCESS_ARGUMENT/flags", [] { start(); return access(mapped(M), M, 2); }},
    {"VMM_ACCESS_ARGUMENT/location", [] { start(); CUdeviceptr p = mapped(M); CUmemAccessDesc d{}; d.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE; return cuMemSetAccess(p, M, &d, 1); }},
    {"VMM_RETAIN_UNKNOWN", [] { start(); CUmemGenericAllocationHandle h; return cuMemRetainAllocationHandle(&h, (void *)alloc(4 * M)); }},
    {"POOL_EXPORT_NOT_EXPORTABLE", [] { start(); int fd; return cuMemPoolExportToShareableHandle(&fd, pool(false), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0); }},
    {"POOL_IMPORT_FOREIGN/memfd", [] { start(); CUmemoryPool q; return import_pool(&q, memfd_create("x", 0)); }},
    {"POOL_IMPORT_OTHER_KIND", [] { start(); CUmemoryPool q; return import_pool(&q, exported(make(M))); }},
    {"POOL_IMPORT_POINTER/zero", [] {
       peer([](int s) { int fd; NEED(cuMemPoolExportToShareableHandle(&fd, pool(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)); give(s, 1, fd); });
       int fd = -1; take<int>(&fd); start(); CUmemoryPool q; NEED(import_pool(&q, fd)); CUmemPoolPtrExportData d{}; CUdeviceptr p; return cuMemPoolImportPointer(&p, q, &d); }},
    {"POOL_ALLOC_IMPORTED", [] {
       peer([](int s) { int fd; NEED(cuMemPoolExportToShareableHandle(&fd, pool(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)); give(s, 1, fd); });
       int fd = -1; take<int>(&fd); start(); CUmemoryPool q; NEED(import_pool(&q, fd)); CUdeviceptr p; return cuMemAllocFromPoolAsync(&p, M, q, 0); }},
    {"STREAM_VALUE_ARGUMENT/address", [] { start(); return cuStreamWriteValue64(0, alloc(M) + 1, 1, 0); }},
    {"STREAM_VALUE_ARGUMENT/wait-flags", [] { start(); return cuStreamWaitValue64(0, alloc(M), 0, 77); }},
    {"STREAM_VALUE_ARGUMENT/write-flags", [] { start(); return cuStreamWriteValue64(0, alloc(M), 0, 77); }},
    // What is no error, as 1 or 0: names in small letters.
    {"opening-a-handle-twice-gives-the-same-address", [] {
       legacy_peer(); auto h = take<CUipcMemHandle>(); start(); CUdeviceptr a, b; NEED(open_handle(h, &a)); NEED(open_handle(h, &b)); return (int)(a == b); }},
    {"a-twice-opened-handle-survives-one-close", [] {
       legacy_peer(); auto h = take<CUipcMemHandle>(); start(); CUdeviceptr a, b; NEED(open_handle(h, &a)); NEED(open_handle(h, &b)); NEED(cuIpcCloseMemHandle(a)); unsigned x = 0; return (int)(cuMemcpyDtoH(&x, b, 4) == 0 && x == 0x5EED); }},
    {"an-import-outlives-the-exporters-free", [] {
       int pair[2]; socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair);
       peer([&](int s) { CUdeviceptr p = alloc(4 * M); NEED(cuMemsetD32(p, 0x5EED, M)); NEED(cuCtxSynchronize()); give(s, handle_of(p)); char c; recv(pair[1], &c, 1, 0); NEED(cuMemFree(p)); give(s, 1); });
       auto h = take<CUipcMemHandle>(); start(); CUdeviceptr p; NEED(open_handle(h, &p)); send(pair[0], "x", 1, 0); take<int>(); unsigned x = 0; return (int)(cuMemcpyDtoH(&x, p, 4) == 0 && x == 0x5EED); }},
    {"a-forked-child-keeps-a-dead-exporters-handle-valid", [] {
       peer([](int s) { CUdeviceptr p = alloc(4 * M); auto h = handle_of(p); if (fork()) give(s, h); });
       auto h = take<CUipcMemHandle>(); kill_peer(); start(); return (int)(open_handle(h) == 0); }},
    {"a-handle-of-an-inner-address-is-the-allocations", [] {
       peer([](int s) { CUdeviceptr p = alloc(4 * M); NEED(cuMemsetD32(p, 7, 1)); NEED(cuCtxSynchronize()); give(s, handle_of(p + M)); });
       auto h = take<CUipcMemHandle>(); start(); CUdeviceptr p; NEED(open_handle(h, &p)); unsigned x = 0; NEED(cuMemcpyDtoH(&x, p, 4)); return (int)(x == 7); }},
    {"a-process-may-import-its-own-vmm-export", [] { start(); return (int)(import_fd(exported(make(M))) == 0); }},
    {"an-import-keeps-the-handle-types", [] {
       start(); int fd = exported(make(M)); CUmemGenericAllocationHandle h; NEED(cuMemImportFromShareableHandle(&h, (void *)(long)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)); int again; return (int)(cuMemExportToShareableHandle(&again, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == 0); }},
    {"the-importer-closes-its-descriptor", [] { start(); int fd = exported(make(M)); NEED(import_fd(fd)); return (int)(fcntl(fd, F_GETFD) >= 0); }},
    {"an-exported-descriptor-is-close-on-exec", [] { start(); return (int)((fcntl(exported(make(M)), F_GETFD) & FD_CLOEXEC) != 0); }},
    {"a-mapping-outlives-the-release", [] {
       start(); CUdeviceptr p = reserve(M); auto h = make(M); NEED(cuMemMap(p, M, 0, h, 0)); NEED(cuMemRelease(h)); NEED(access(p, M, 3)); return (int)(cuMemsetD8(p, 1, M) == 0 && cuCtxSynchronize() == 0); }},
    {"a-copy-crosses-two-mappings", [] {
       start(); CUdeviceptr p = reserve(2 * M); NEED(cuMemMap(p, M, 0, make(M), 0)); NEED(cuMemMap(p + M, M, 0, make(M), 0)); NEED(access(p, 2 * M, 3)); return (int)(cuMemsetD8(p + M / 2, 9, M) == 0 && cuCtxSynchronize() == 0); }},
    {"one-unmap-takes-two-mappings", [] { start(); CUdeviceptr p = reserve(2 * M); NEED(cuMemMap(p, M, 0, make(M), 0)); NEED(cuMemMap(p + M, M, 0, make(M), 0)); return (int)(cuMemUnmap(p, 2 * M) == 0); }},
    {"context-of-vmm-memory-is-null", [] { start(); CUdeviceptr p = mapped(M); NEED(access(p, M, 3)); CUcontext c = (CUcontext)1; return (int)(cuPointerGetAttribute(&c, CU_POINTER_ATTRIBUTE_CONTEXT, p) == 0 && !c); }},
    {"allowed-handle-types-fill-8-bytes", [] {
       start(); CUdeviceptr p = mapped(M); NEED(access(p, M, 3)); unsigned long long t = ~0ull; NEED(cuPointerGetAttribute(&t, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, p)); return (int)(t == 1); }},
    {"legacy-capable-fills-4-bytes", [] {
       start(); CUdeviceptr p = alloc(M); unsigned long long t = ~0ull; NEED(cuPointerGetAttribute(&t, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p)); return (int)(t == 0xffffffff00000001ull); }},
    {"address-range-of-a-mapping-is-the-mapping", [] {
       start(); CUdeviceptr p = reserve(4 * M); NEED(cuMemMap(p + M, M, 0, make(M), 0)); NEED(access(p + M, M, 3)); CUdeviceptr b; size_t n; NEED(cuMemGetAddressRange(&b, &n, p + M + 4096)); return (int)(b == p + M && n == M); }},
};

int main(int argc, char **argv) {
  std::string name = argc > 1 ? argv[1] : "list";
  for (auto &c : cases) {
    if (name == "list") puts(c.name);
    if (name == c.name) { printf("%s %d\n", c.name, c.ask()); fflush(stdout); close(peer_socket); while (wait(0) > 0) {} exit(0); }
  }
  return name == "list" ? 0 : 2;
}
