/* A driver double for the shim's tests: counts bytes and calls, fails on demand, and
 * tells what it was really asked. State of the cards is shared between processes through
 * the file FAKE_CARD, so that a test can read the highest count that was ever reached. */
#ifndef FAKE_H
#define FAKE_H

#include <stdint.h>

#define FAKE_CARDS 4
#define FAKE_INSTANCE 0xf1 /* first byte of an instance's uuid */

struct fake_card {
    uint64_t total;
    _Atomic uint64_t used;
    _Atomic uint64_t peak;
};

struct fake_state {
    struct fake_card cards[FAKE_CARDS];
};

struct fake_state *fake_state(void);
uint64_t fake_number(const char *variable, uint64_t otherwise);
int fake_count(void);
void fake_uuid(int card, unsigned char bytes[16]);

#endif
