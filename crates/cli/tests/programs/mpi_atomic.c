/* MPI-IO in atomic mode: all ranks write the same bytes at once, and every read must see the
 * bytes of one write wholly. First one contiguous piece over several chunks, then pieces with
 * holes between them (a file view), where the library has to lock from the first to the last.
 * With the argument "torn" atomic mode stays off, to see that the test can fail. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 40
#define LOOKS 3
#define BYTES 300000
#define PIECES 50
#define PIECE 2000
#define STRIDE 6000

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

/* The mark that fills the buffer, or the end of the program. */
static int whole(const unsigned char *buffer, int length, const char *what)
{
    for (int i = 1; i < length; i++)
        if (buffer[i] != buffer[0]) {
            fprintf(stderr, "rank %d: %s: torn at byte %d: mark %d, then %d\n", rank, what, i, buffer[0], buffer[i]);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
    return buffer[0];
}

static int fight(MPI_File file, int length, const char *what)
{
    unsigned char *buffer = malloc(length);
    MPI_Status status;
    int count, changes = 0;
    for (int round = 0; round < ROUNDS; round++) {
        memset(buffer, 1 + round * ranks + rank, length);
        must(MPI_File_write_at(file, 0, buffer, length, MPI_BYTE, &status), "write");
        MPI_Get_count(&status, MPI_BYTE, &count);
        if (count != length)
            must(MPI_ERR_IO, "short write");
        for (int look = 0; look < LOOKS; look++) {
            must(MPI_File_read_at(file, 0, buffer, length, MPI_BYTE, &status), "read");
            MPI_Get_count(&status, MPI_BYTE, &count);
            if (count != length)
                must(MPI_ERR_IO, "short read");
            changes += (whole(buffer, length, what) - 1) % ranks != rank;
        }
    }
    free(buffer);
    return changes;
}

int main(int argc, char **argv)
{
    MPI_File file;
    MPI_Datatype pieces;
    int atomic = argc < 2 || strcmp(argv[1], "torn") != 0, found = 0, changes, all;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    must(MPI_File_open(MPI_COMM_WORLD, "atomic.data", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open");
    must(MPI_File_set_atomicity(file, atomic), "set_atomicity");
    must(MPI_File_get_atomicity(file, &found), "get_atomicity");
    if (!found != !atomic)
        must(MPI_ERR_IO, "atomic mode is not on");

    changes = fight(file, BYTES, "contiguous");
    MPI_Type_vector(PIECES, PIECE, STRIDE, MPI_BYTE, &pieces);
    MPI_Type_commit(&pieces);
    must(MPI_File_set_view(file, 1000, MPI_BYTE, pieces, "native", MPI_INFO_NULL), "set_view");
    changes += fight(file, PIECES * PIECE, "with holes");

    MPI_Allreduce(&changes, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d of %d reads saw another rank's write\n", all, 2 * ROUNDS * LOOKS * ranks);
    must(MPI_File_close(&file), "close");
    MPI_Type_free(&pieces);
    MPI_Finalize();
    return 0;
}
