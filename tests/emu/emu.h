/* emu.h: what the files of the emulator share: failing, sanitizers, and the walk between host and device. */
#ifndef SPL_EMU_H
#define SPL_EMU_H
#include <cuda_runtime.h>
#include <memory>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define EMU_POISON(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define EMU_UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define EMU_POISON(p, n) ((void)(p), (void)(n))
#define EMU_UNPOISON(p, n) ((void)(p), (void)(n))
#endif

/* EMU_TSAN: the kernels are compiled with -fsanitize=thread, the emulator itself is not: it tells ThreadSanitizer which
 * fiber runs, and what orders what. */
#ifdef EMU_TSAN
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *p);
void __tsan_release(void *p);
void __tsan_read_range(void *p, unsigned long n);
void __tsan_write_range(void *p, unsigned long n);
void __tsan_read16(void *p);
void __tsan_write16(void *p);
void __tsan_java_init(unsigned long heap, unsigned long n);
void __tsan_java_alloc(unsigned long p, unsigned long n); /* the public way to say that memory is new */
}
#define EMU_TS(...) __VA_ARGS__
#else
#define EMU_TS(...)
#endif

namespace emu {
[[noreturn]] void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *where(); /* "" or the kernel, block and thread that run */
void run_grid(const char *name, dim3 grid, dim3 size, size_t shared, const std::function<void()> &body);

enum Mode { EAGER, LAZY, RANDOM };
struct Settings {
    Mode mode;  /* SPL_EMU_MODE: how streams run */
    int order;  /* SPL_EMU_ORDER: of threads and blocks: 0 forward, 1 reverse, 2 random */
    uint32_t seed;
};
Settings &settings();
uint32_t draw(); /* a random number of the run's seed */

/* Device memory can be touched between enter and leave only; they nest. */
struct OnDevice {
    OnDevice();
    ~OnDevice();
};
/* Dies unless [p, p + n) lies in one live allocation of device memory. */
void check_device(const void *p, size_t n, const char *what);
bool is_device(const void *p);
/* For ThreadSanitizer: device work that the compiler did not see reads or writes this. */
static inline void reads(const void *p, size_t n) { (void)p, (void)n; EMU_TS(if (n) __tsan_read_range((void *)p, n);) }
static inline void writes(void *p, size_t n) { (void)p, (void)n; EMU_TS(if (n) __tsan_write_range(p, n);) }

/* Puts work into a stream; `poll` is called, with device memory open, until it says true. */
void enqueue(cudaStream_t s, const char *name, std::function<bool()> poll);
/* Lets every stream take a step: called where the host waits for something else than the device. */
void progress();
}
#endif
