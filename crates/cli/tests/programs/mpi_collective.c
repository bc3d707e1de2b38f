/* Collective MPI-IO on one file in atomic mode: the ranks write interleaved blocks by write_all, and each reads the
 * other's back, first by read_all and then with plain POSIX calls; then an ordered log through the
 * shared file pointer. */
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 1500
#define BLOCKS 400
#define LINES 50
#define LINE 16

static int rank, ranks;

static void must(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, text);
    MPI_Abort(MPI_COMM_WORLD, 2);
}

static void demand(int fits, const char *what)
{
    if (fits)
        return;
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static int value(int owner, int i)
{
    return owner * BLOCK * BLOCKS + i;
}

static void view(MPI_File file, int owner, MPI_Datatype type)
{
    must(MPI_File_set_view(file, (MPI_Offset)owner * BLOCK * sizeof(int), MPI_INT, type, "native", MPI_INFO_NULL),
         "set_view");
}

static void blocks(void)
{
    MPI_File file;
    MPI_Datatype type;
    int *buffer = malloc(sizeof(int) * BLOCK * BLOCKS), other = (rank + 1) % ranks;

    MPI_Type_vector(BLOCKS, BLOCK, BLOCK * ranks, MPI_INT, &type);
    MPI_Type_commit(&type);
    must(MPI_File_open(MPI_COMM_WORLD, "blocks", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open");
    must(MPI_File_set_atomicity(file, 1), "set_atomicity");
    for (int i = 0; i < BLOCK * BLOCKS; i++)
        buffer[i] = value(rank, i);
    view(file, rank, type);
    must(MPI_File_write_all(file, buffer, BLOCK * BLOCKS, MPI_INT, MPI_STATUS_IGNORE), "write_all");
    must(MPI_File_sync(file), "sync");
    MPI_Barrier(MPI_COMM_WORLD);
    must(MPI_File_sync(file), "sync");
    memset(buffer, 0, sizeof(int) * BLOCK * BLOCKS);
    view(file, other, type);
    must(MPI_File_read_all(file, buffer, BLOCK * BLOCKS, MPI_INT, MPI_STATUS_IGNORE), "read_all");
    for (int i = 0; i < BLOCK * BLOCKS; i++)
        demand(buffer[i] == value(other, i), "read_all: wrong data");
    must(MPI_File_close(&file), "close");

    int fd = open("blocks", O_RDONLY);
    demand(fd >= 0, "open: blocks is not there");
    demand(lseek(fd, 0, SEEK_END) == (off_t)sizeof(int) * BLOCK * BLOCKS * ranks, "blocks has a wrong size");
    for (int b = 0; b < BLOCKS; b++) {
        off_t at = (off_t)sizeof(int) * BLOCK * (b * ranks + other);
        demand(pread(fd, buffer, sizeof(int) * BLOCK, at) == (ssize_t)sizeof(int) * BLOCK, "pread is short");
        for (int i = 0; i < BLOCK; i++)
            demand(buffer[i] == value(other, b * BLOCK + i), "pread: wrong data");
    }
    close(fd);
    free(buffer);
    MPI_Type_free(&type);
}

static void ordered_log(void)
{
    MPI_File file;
    char line[64], wanted[64];

    must(MPI_File_open(MPI_COMM_WORLD, "log", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open log");
    for (int i = 0; i < LINES; i++) {
        snprintf(line, sizeof line, "%06d rank%4d\n", i, rank);
        must(MPI_File_write_ordered(file, line, LINE, MPI_CHAR, MPI_STATUS_IGNORE), "write_ordered");
    }
    must(MPI_File_close(&file), "close log");
    MPI_Barrier(MPI_COMM_WORLD);
    FILE *log = fopen("log", "r");
    demand(log != NULL, "fopen: log is not there");
    for (int i = 0; i < LINES * ranks; i++) {
        snprintf(wanted, sizeof wanted, "%06d rank%4d\n", i / ranks, i % ranks);
        demand(fread(line, 1, LINE, log) == LINE && !memcmp(line, wanted, LINE), "log: wrong line");
    }
    demand(fgetc(log) == EOF, "log is too long");
    fclose(log);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    blocks();
    ordered_log();
    MPI_Finalize();
    return 0;
}
