// The table of functions for messages. A row has the number of arguments, the name, the operation under which
// calls are counted, and a letter for each argument.
#pragma once

// The letters: buffer, count, type, destination and tag of a send (bntdg); buffer, count, type, source and
// tag of a receive (BNTSG); a communicator (c); where the request, status, flag or message goes (qsfm).
// clang-format off
#define MESSAGES(ROW, MATCHED, PROBE)                         \
  ROW(6, Send, Send, "bntdgc")                                \
  ROW(6, Ssend, Send, "bntdgc")                               \
  ROW(6, Bsend, Send, "bntdgc")                               \
  ROW(6, Rsend, Send, "bntdgc")                               \
  ROW(7, Isend, Send, "bntdgcq")                              \
  ROW(7, Issend, Send, "bntdgcq")                             \
  ROW(7, Ibsend, Send, "bntdgcq")                             \
  ROW(7, Irsend, Send, "bntdgcq")                             \
  ROW(7, Send_init, Send, "bntdgcq")                          \
  ROW(7, Ssend_init, Send, "bntdgcq")                         \
  ROW(7, Bsend_init, Send, "bntdgcq")                         \
  ROW(7, Rsend_init, Send, "bntdgcq")                         \
  ROW(7, Recv, Recv, "BNTSGcs")                               \
  ROW(7, Irecv, Recv, "BNTSGcq")                              \
  ROW(7, Recv_init, Recv, "BNTSGcq")                          \
  ROW(12, Sendrecv, Sendrecv, "bntdgBNTSGcs")                 \
  ROW(12, Isendrecv, Sendrecv, "bntdgBNTSGcq")                \
  ROW(9, Sendrecv_replace, Sendrecv, "BNTdgSGcs")             \
  ROW(9, Isendrecv_replace, Sendrecv, "BNTdgSGcq")            \
  MATCHED(5, Mrecv, Recv, "BNTms")                            \
  MATCHED(5, Imrecv, Recv, "BNTmq")                           \
  PROBE(4, Probe, Probe, "SGcs")                              \
  PROBE(5, Iprobe, Probe, "SGcfs")                            \
  PROBE(5, Mprobe, Probe, "SGcms")                            \
  PROBE(6, Improbe, Probe, "SGcfms")
// clang-format on
