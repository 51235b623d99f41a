// The table of sends, receives and probes: a row has the number of C's arguments, the function's names in C
// and Fortran, and a letter for each argument.
#pragma once

// The letters, in mpi4py's order: the buffer, number, type, destination and tag of a send (bntdg), of a
// receive with its source (BNTSG), a communicator, and where a request, status, flag or message goes (qsfm).
// clang-format off
#define MESSAGES(ROW, MATCHED, PROBE)                          \
  ROW(6, Send, send, "bntdgc")                                 \
  ROW(6, Ssend, ssend, "bntdgc")                               \
  ROW(7, Isend, isend, "bntdgcq")                              \
  ROW(7, Issend, issend, "bntdgcq")                            \
  ROW(7, Recv, recv, "BNTSGcs")                                \
  ROW(7, Irecv, irecv, "BNTSGcq")                              \
  ROW(12, Sendrecv, sendrecv, "bntdgBNTSGcs")                  \
  ROW(12, Isendrecv, isendrecv, "bntdgBNTSGcq")                \
  ROW(9, Sendrecv_replace, sendrecv_replace, "BNTdgSGcs")      \
  ROW(9, Isendrecv_replace, isendrecv_replace, "BNTdgSGcq")    \
  PROBE(4, Probe, probe, "SGcs")                               \
  PROBE(5, Iprobe, iprobe, "SGcfs")                            \
  PROBE(5, Mprobe, mprobe, "SGcms")                            \
  PROBE(6, Improbe, improbe, "SGcfms")                         \
  MATCHED(5, Mrecv, mrecv, "BNTms")                            \
  MATCHED(5, Imrecv, imrecv, "BNTmq")                          \
  ROW(7, Send_init, send_init, "bntdgcq")                      \
  ROW(7, Ssend_init, ssend_init, "bntdgcq")                    \
  ROW(7, Recv_init, recv_init, "BNTSGcq")
// clang-format on
