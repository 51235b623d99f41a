// The table of messages: a row has the number of C's arguments, the name, the operation under which it is
// counted, the name in Fortran, and a letter for each argument.
#pragma once

// The letters: the buffer, number, type, destination and tag of a send (bntdg), of a receive with its source
// (BNTSG), a communicator, and where a request, status, flag or message goes (qsfm). Of a probe the first row
// is the blocking form.
// clang-format off
#define MESSAGES(ROW, MATCHED, PROBE)                                   \
  ROW(6, Send, Send, send, "bntdgc")                                    \
  ROW(6, Ssend, Send, ssend, "bntdgc")                                  \
  ROW(6, Bsend, Send, bsend, "bntdgc")                                  \
  ROW(6, Rsend, Send, rsend, "bntdgc")                                  \
  ROW(7, Isend, Send, isend, "bntdgcq")                                 \
  ROW(7, Issend, Send, issend, "bntdgcq")                               \
  ROW(7, Ibsend, Send, ibsend, "bntdgcq")                               \
  ROW(7, Irsend, Send, irsend, "bntdgcq")                               \
  ROW(7, Send_init, Send, send_init, "bntdgcq")                         \
  ROW(7, Ssend_init, Send, ssend_init, "bntdgcq")                       \
  ROW(7, Bsend_init, Send, bsend_init, "bntdgcq")                       \
  ROW(7, Rsend_init, Send, rsend_init, "bntdgcq")                       \
  ROW(7, Recv, Recv, recv, "BNTSGcs")                                   \
  ROW(7, Irecv, Recv, irecv, "BNTSGcq")                                 \
  ROW(7, Recv_init, Recv, recv_init, "BNTSGcq")                         \
  ROW(12, Sendrecv, Sendrecv, sendrecv, "bntdgBNTSGcs")                 \
  ROW(12, Isendrecv, Sendrecv, isendrecv, "bntdgBNTSGcq")               \
  ROW(9, Sendrecv_replace, Sendrecv, sendrecv_replace, "BNTdgSGcs")     \
  ROW(9, Isendrecv_replace, Sendrecv, isendrecv_replace, "BNTdgSGcq")   \
  MATCHED(5, Mrecv, Recv, mrecv, "BNTms")                               \
  MATCHED(5, Imrecv, Recv, imrecv, "BNTmq")                             \
  PROBE(4, Probe, Probe, probe, "SGcs")                                 \
  PROBE(5, Iprobe, Probe, iprobe, "SGcfs")                              \
  PROBE(5, Mprobe, Probe, mprobe, "SGcms")                              \
  PROBE(6, Improbe, Probe, improbe, "SGcfms")
// clang-format on
