/* Libraries that lie in the pool, opened while the program runs. Working directory in the pool. What is
 * checked holds in any directory: the program passes in /tmp without the preload library. */
#include "check.h"
#include <dlfcn.h>

static char here[4096];

static void library(const char *name, const char *text, const char *flags)
{
    char command[8192];
    FILE *source = fopen("source.c", "w");
    CHECK(source && fputs(text, source) >= 0 && fclose(source) == 0);
    snprintf(command, sizeof command, "cc -w -shared -fPIC -o %s source.c %s", name, flags);
    CHECK(system(command) == 0);
}

/* A library whose which() gives this number. */
static void numbered(const char *name, int number)
{
    char text[100];
    snprintf(text, sizeof text, "int which(void) { return %d; }", number);
    library(name, text, "");
}

static const char *absolute(const char *name)
{
    static char paths[8][8192];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", here, name);
    return path;
}

static void *opened(const char *name)
{
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        fprintf(stderr, "%s\n", dlerror());
    CHECK(handle);
    return handle;
}

static int ask(void *handle, const char *name)
{
    int (*function)(void) = (int (*)(void))dlsym(handle, name);
    CHECK(function);
    return function();
}

static void two_are_two_and_one_is_one(void)
{
    numbered("liba.so", 1), numbered("libb.so", 2);
    CHECK(symlink("liba.so", "symbolic.so") == 0 && link("liba.so", "hard.so") == 0);
    void *a = opened(absolute("liba.so")), *b = opened(absolute("libb.so"));
    CHECK(a != b && ask(a, "which") == 1 && ask(b, "which") == 2);
    CHECK(opened(absolute("liba.so")) == a && opened("./liba.so") == a);
    CHECK(opened("./symbolic.so") == a && opened(absolute("hard.so")) == a && opened("./libb.so") == b);
    CHECK(dlopen("./liba.so", RTLD_NOW | RTLD_NOLOAD) == a);
    CHECK(!dlopen("./libnone.so", RTLD_NOW) && strstr(dlerror(), "libnone.so"));
    put("text.so", "this is no library");
    CHECK(!dlopen("./text.so", RTLD_NOW) && strstr(dlerror(), "text.so"));
    library("undefined.so", "extern int nowhere(void); int which(void) { return nowhere(); }", "");
    CHECK(!dlopen(absolute("undefined.so"), RTLD_NOW) && strstr(dlerror(), absolute("undefined.so")));
}

/* More than there are numbers to choose from, while the program opens and closes files of its own. */
static void many_are_many(void)
{
    void *handles[40];
    char name[32];
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "./many%d.so", i);
        numbered(name, 100 + i);
    }
    for (int i = 0; i < 40; i++) {
        int fds[3];
        for (int n = 0; n <= i % 3; n++)
            fds[n] = open("/dev/null", O_RDONLY);
        snprintf(name, sizeof name, "./many%d.so", i);
        handles[i] = opened(name);
        for (int n = 0; n <= i % 3; n++)
            close(fds[n]);
    }
    for (int i = 0; i < 40; i++) {
        CHECK(ask(handles[i], "which") == 100 + i);
        for (int k = 0; k < i; k++)
            CHECK(handles[i] != handles[k]);
    }
}

static void replaced(void)
{
    numbered("libr.so", 1), numbered("new.so", 2);
    void *old = opened("./libr.so");
    CHECK(rename("new.so", "libr.so") == 0);
    /* Known by its name as long as it is loaded; by another name the new file is found. */
    CHECK(opened("./libr.so") == old && ask(old, "which") == 1);
    void *new = opened(absolute("libr.so"));
    CHECK(new != old && ask(new, "which") == 2);
    CHECK(dlclose(old) == 0 && dlclose(old) == 0 && dlclose(new) == 0);
    CHECK(ask(opened("./libr.so"), "which") == 2);
    numbered("libu.so", 1);
    void *one = opened("./libu.so");
    CHECK(ask(one, "which") == 1 && dlclose(one) == 0);
    numbered("new.so", 2);
    CHECK(rename("new.so", "libu.so") == 0 && ask(opened("./libu.so"), "which") == 2);
}

/* Data, zeros behind them, and the libraries that are needed. */
static const char top[] = "extern int low(void); int data = 7; static char zeros[100000]; int *at = &data;"
                          "int high(void) { for (int i = 0; i < 100000; i++) if (zeros[i]) return -1;"
                          "zeros[0] = zeros[99999] = 1; int n = *at * 100 + low(); zeros[0] = zeros[99999] = 0; return n; }";

static void needs(void)
{
    char flags[9000];
    CHECK(mkdir("lib", 0755) == 0 && mkdir("lib/deep", 0755) == 0);
    /* Without a name of its own, with one, with versions; by $ORIGIN, by a path in the pool; through another one. */
    library("lib/liblow.so", "int low(void) { return 1; }", "");
    library("lib/top1.so", top, "-Llib -llow -Wl,-rpath,'$ORIGIN'");
    CHECK(ask(opened("lib/top1.so"), "high") == 701);
    library("lib/deep/libsoname.so", "int low(void) { return 2; }", "-Wl,-soname,libsoname.so");
    library("lib/top2.so", top, "-Llib/deep -lsoname -Wl,-rpath,'/nowhere:${ORIGIN}/deep'");
    CHECK(ask(opened("lib/top2.so"), "high") == 702);
    put("versions", "V1 { global: low; local: *; };");
    library("lib/deep/libversions.so", "int low(void) { return 3; }", "-Wl,-soname,libversions.so -Wl,--version-script=versions");
    snprintf(flags, sizeof flags, "-Llib/deep -lversions -Wl,--disable-new-dtags,-rpath,'%s'", absolute("lib/deep"));
    library("top3.so", top, flags);
    CHECK(ask(opened("./top3.so"), "high") == 703);
    library("lib/deep/libbottom.so", "int bottom(void) { return 4; }", "");
    library("lib/libmiddle.so", "extern int bottom(void); int low(void) { return bottom(); }", "-Llib/deep -lbottom");
    library("top4.so", top, "-Llib -lmiddle -Wl,--disable-new-dtags,-rpath,'$ORIGIN/lib:$ORIGIN/lib/deep' -Wl,--allow-shlib-undefined");
    void *through = opened(absolute("top4.so"));
    CHECK(ask(through, "high") == 704);
    /* What a library needs and what is opened by its path are one. */
    CHECK(opened(absolute("lib/deep/libbottom.so")) == opened("lib/deep/libbottom.so"));
    void *bottom = dlsym(through, "bottom");
    CHECK(bottom && dlsym(opened("lib/deep/libbottom.so"), "bottom") == bottom);
    library("lacks.so", top, "-Llib -llow -Wl,-rpath,/nowhere");
    /* Loaded under that name: not looked for again. */
    CHECK(ask(opened("./lacks.so"), "high") == 701);
    library("lib/libgone.so", "int low(void) { return 5; }", "");
    library("lacks2.so", top, "-Llib -lgone -Wl,-rpath,/nowhere");
    CHECK(!dlopen("./lacks2.so", RTLD_NOW) && strstr(dlerror(), "libgone.so"));
}

/* A library that opens one by its name alone, which its own RUNPATH leads to. */
static void plugins(void)
{
    CHECK(mkdir("plugins", 0755) == 0);
    numbered("plugins/libplugin.so", 91);
    library("host.so", "#include <dlfcn.h>\nint host(void) { void *p = dlopen(\"libplugin.so\", RTLD_NOW); return p ? ((int (*)(void))dlsym(p, \"which\"))() : -1; }",
            "-ldl -Wl,-rpath,'$ORIGIN/plugins'");
    CHECK(!dlopen("libplugin.so", RTLD_NOW));
    CHECK(ask(opened("./host.so"), "host") == 91);
    CHECK(dlopen("libplugin.so", RTLD_NOW | RTLD_NOLOAD) || strstr(dlerror(), "libplugin.so"));
}

static void names(void)
{
    Dl_info info;
    void *handle = opened(absolute("liba.so"));
    CHECK(dladdr(dlsym(handle, "which"), &info) != 0);
    CHECK(strcmp(info.dli_fname, absolute("liba.so")) == 0);
    void *b = opened("lib/deep/libbottom.so");
    CHECK(dladdr(dlsym(b, "bottom"), &info) != 0 && access(info.dli_fname, R_OK) == 0);
    CHECK(strstr(info.dli_fname, "/libbottom.so"));
}

static void other_name_space(void)
{
    void *a = dlmopen(LM_ID_NEWLM, absolute("liba.so"), RTLD_NOW);
    Lmid_t space;
    CHECK(a && dlinfo(a, RTLD_DI_LMID, &space) == 0 && space != LM_ID_BASE);
    CHECK(a != opened(absolute("liba.so")) && ask(a, "which") == 1);
    void *b = dlmopen(space, absolute("libb.so"), RTLD_NOW);
    CHECK(b && b != a && ask(b, "which") == 2 && dlmopen(space, "./liba.so", RTLD_NOW) == a);
    void *other = dlmopen(LM_ID_NEWLM, absolute("liba.so"), RTLD_NOW);
    CHECK(other && other != a && dlmopen(LM_ID_BASE, "./libb.so", RTLD_NOW) == opened("./libb.so"));
    void *top = dlmopen(LM_ID_NEWLM, absolute("lib/top1.so"), RTLD_NOW);
    CHECK(top && ask(top, "high") == 701);
}

static pthread_barrier_t barrier;
static void *same(void *name)
{
    pthread_barrier_wait(&barrier);
    return opened(name);
}

static void threads(void)
{
    enum { N = 8 };
    pthread_t thread[N];
    library("slow.so", "#include <unistd.h>\n__attribute__((constructor)) static void start(void) { usleep(50000); }", "");
    pthread_barrier_init(&barrier, 0, N);
    for (int i = 0; i < N; i++)
        CHECK(pthread_create(&thread[i], 0, same, "./slow.so") == 0);
    void *first = 0;
    for (int i = 0; i < N; i++) {
        void *handle;
        CHECK(pthread_join(thread[i], &handle) == 0);
        first = first ? first : handle;
        CHECK(handle == first);
    }
}

/* A constructor that opens another one, as Python's extension modules do. */
static void nested(void)
{
    char text[9000];
    snprintf(text, sizeof text,
             "#include <dlfcn.h>\nstatic void *b; __attribute__((constructor)) static void start(void) { b = dlopen(\"%s\", RTLD_NOW); }"
             "int inner(void) { return b ? ((int (*)(void))dlsym(b, \"which\"))() : -1; }",
             absolute("inner.so"));
    numbered("inner.so", 77);
    library("outer.so", text, "-ldl");
    CHECK(ask(opened("./outer.so"), "inner") == 77);
}

/* By LD_LIBRARY_PATH: this program once more, which is the only way that the loader takes it. */
static void by_environment(const char *self)
{
    numbered("lib/libenv.so", 55);
    setenv("LD_LIBRARY_PATH", absolute("lib"), 1);
    pid_t pid = fork();
    if (pid == 0) {
        execl(self, self, "environment", (char *)0);
        _exit(9);
    }
    CHECK(wait_ok(pid));
}

int main(int count, char **arguments)
{
    CHECK(getcwd(here, sizeof here));
    if (count > 1 && strcmp(arguments[1], "environment") == 0) {
        CHECK(ask(opened("libenv.so"), "which") == 55 && opened("libenv.so") == opened("lib/libenv.so"));
        CHECK(!dlopen("libnever.so", RTLD_NOW) && dlopen("libm.so.6", RTLD_NOW));
        return 0;
    }
    two_are_two_and_one_is_one(), many_are_many(), replaced(), needs(), plugins(), names(), other_name_space(), threads(), nested();
    by_environment(arguments[0]);
    return 0;
}
