; Bands of dielectric spheres in a diamond lattice, computed on a grid of resolution^3 points.
(set! geometry-lattice
  (make lattice (basis-size (sqrt 0.5) (sqrt 0.5) (sqrt 0.5))
    (basis1 0 1 1) (basis2 1 0 1) (basis3 1 1 0)))
(set! default-material (make dielectric (epsilon 1)))
(set! geometry
  (list (make sphere (center 0.125 0.125 0.125) (radius 0.25) (material (make dielectric (epsilon 11.56))))
        (make sphere (center -0.125 -0.125 -0.125) (radius 0.25) (material (make dielectric (epsilon 11.56))))))
(set! k-points (list (vector3 0 0.5 0.5)))
(set! resolution 32)
(set! num-bands 4)
(set! deterministic? true)
(run)
