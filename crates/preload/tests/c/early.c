/* A library (-DLIBRARY) whose constructor opens another library before the preload library's own
 * constructor has run, as UCX does, and the program that is linked with it. */
#include <dlfcn.h>
#include <stdio.h>

#ifdef LIBRARY
void *early;

__attribute__((constructor)) static void start(void)
{
    early = dlopen("libm.so.6", RTLD_NOW);
}
#else
extern void *early;

int main(void)
{
    void *late = dlopen("libm.so.6", RTLD_NOW);
    if (early && late && dlsym(late, "cos"))
        return 0;
    fprintf(stderr, "early %p, late %p\n", early, late);
    return 1;
}
#endif
